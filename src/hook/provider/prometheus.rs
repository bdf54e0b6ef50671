//! The provider `prometheus`: an instant query. The value of a scalar is a number, that of a vector is its
//! numbers in the order of their labels. Must not judge them.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde::Deserialize;

use crate::api::hook_template::{Argument, Prometheus};
use crate::hook::address_policy::AddressPolicy;
use crate::hook::measured::Measured;
use crate::hook::provider::http::{self, Request};
use crate::hook::provider::rendered;
use crate::hook::value::{Value, cut};

/// Time limit of the whole query.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of bytes of Prometheus' own error text in a message.
const MAX_MESSAGE: usize = 512;

/// The answer to a query, a success or an error.
#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Scalar(Sample),
    Vector(Vec<Series>),
    String(serde::de::IgnoredAny),
    Matrix(serde::de::IgnoredAny),
}

/// A time, and the number as text, since JSON has no NaN.
#[derive(Deserialize)]
struct Sample(#[expect(dead_code, reason = "its place counts")] f64, String);

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    /// Absent for a histogram.
    value: Option<Sample>,
}

pub(super) async fn measure(
    prometheus: &Prometheus,
    args: &[Argument],
    policy: &AddressPolicy,
) -> Result<Measured, String> {
    let mut url = http::url(&rendered("address", &prometheus.address, args)?)?;
    let query = rendered("query", &prometheus.query, args)?;
    let path = format!("{}/api/v1/query", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.query_pairs_mut().clear().append_pair("query", &query);
    let asked = http::redacted(&url);
    let request = Request { method: Method::GET, url, headers: HeaderMap::new(), body: None, tls: None };
    // The body of an error status explains what is wrong with the query; a redirect has no such body.
    let answer = http::exchange(policy, request, LIMIT, |status| !status.is_redirection()).await?;
    let Ok(reported) = serde_json::from_slice::<Answer>(&answer.body) else {
        return Err(format!("{asked} answered {}, but not with a Prometheus response", answer.status));
    };
    if reported.status != "success" {
        return Err(format!("Prometheus cannot answer the query: {}", cut(&reported.error, MAX_MESSAGE)));
    }
    value(reported.data).map(Measured::Value)
}

fn value(data: Option<Data>) -> Result<Value, String> {
    const KIND: &str = "the query must return a scalar or a vector, not a";
    match data {
        Some(Data::Scalar(sample)) => number(&sample).map(Value::Number),
        Some(Data::Vector(mut series)) => {
            series.sort_by(|a, b| a.metric.cmp(&b.metric));
            let numbers = series
                .iter()
                .map(|series| series.value.as_ref().map_or_else(|| Err(format!("{KIND} histogram")), number));
            numbers.collect::<Result<_, _>>().map(Value::Numbers)
        }
        Some(Data::String(_)) => Err(format!("{KIND} string")),
        Some(Data::Matrix(_)) => Err(format!("{KIND} range vector")),
        None => Err("Prometheus' answer contains no result".to_owned()),
    }
}

fn number(Sample(_, text): &Sample) -> Result<f64, String> {
    text.parse().map_err(|_| "Prometheus' answer contains a value that is not a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &str) -> Result<Value, String> {
        value(serde_json::from_str(data).unwrap())
    }

    #[test]
    fn a_vector_is_in_the_order_of_its_labels() {
        let a = r#"{"metric":{"__name__":"up","pod":"a"},"value":[1700000000.123,"1"]}"#;
        let b = r#"{"metric":{"__name__":"up","pod":"b"},"value":[1700000000,"+Inf"]}"#;
        for result in [format!("[{a},{b}]"), format!("[{b},{a}]")] {
            let value = read(&format!(r#"{{"resultType":"vector","result":{result}}}"#));
            assert_eq!(value, Ok(Value::Numbers(vec![1.0, f64::INFINITY])));
        }
        assert_eq!(read(r#"{"resultType":"vector","result":[]}"#), Ok(Value::Numbers(vec![])));
    }

    #[test]
    fn numbers_are_read_as_prometheus_writes_them() {
        for (text, expect) in [("1.5e-7", 1.5e-7), ("-Inf", f64::NEG_INFINITY), ("1234567", 1_234_567.0)] {
            let value = read(&format!(r#"{{"resultType":"scalar","result":[1,"{text}"]}}"#));
            assert_eq!(value, Ok(Value::Number(expect)));
        }
        let nan = read(r#"{"resultType":"scalar","result":[1,"NaN"]}"#);
        assert!(matches!(nan, Ok(Value::Number(number)) if number.is_nan()));
        assert!(read(r#"{"resultType":"scalar","result":[1,"x"]}"#).is_err());
    }

    #[test]
    fn other_kinds_are_errors() {
        for (data, kind) in [
            (r#"{"resultType":"string","result":[1,"x"]}"#, "string"),
            (r#"{"resultType":"matrix","result":[]}"#, "range vector"),
            (r#"{"resultType":"vector","result":[{"metric":{},"histogram":[1,{}]}]}"#, "histogram"),
        ] {
            assert!(read(data).unwrap_err().ends_with(kind), "{data}");
        }
        assert!(value(None).is_err());
    }
}
