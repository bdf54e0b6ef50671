//! The provider `prometheus`: an instant query. The value of a scalar is a number, that of a vector is its
//! numbers in the order of their labels. Must not judge them.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;

use crate::api::hook_template::{Argument, Prometheus};
use crate::hook::address_policy::AddressPolicy;
use crate::hook::json::{Json, NotJson};
use crate::hook::measured::Measured;
use crate::hook::provider::http::{self, Request};
use crate::hook::provider::rendered;
use crate::hook::value::{Value, cut};

/// Time limit of the whole query.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of bytes of Prometheus' own error text in a message.
const MAX_MESSAGE: usize = 512;

/// One series of a vector.
struct Series<'a> {
    /// In their order.
    labels: Vec<(&'a str, &'a str)>,
    /// Absent for a histogram.
    sample: Option<&'a str>,
}

pub(super) async fn measure(
    prometheus: &Prometheus,
    args: &[Argument],
    namespace: &str,
    policy: &AddressPolicy,
) -> Result<Measured, String> {
    let mut url = http::url(&rendered("address", &prometheus.address, args)?)?;
    let query = rendered("query", &prometheus.query, args)?;
    let path = format!("{}/api/v1/query", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.query_pairs_mut().clear().append_pair("query", &query);
    let asked = http::redacted(&url);
    let (method, headers) = (Method::GET, HeaderMap::new());
    let request = Request { namespace, method, url, headers, body: None, tls: None };
    // The body of an error status explains what is wrong with the query; a redirect has no such body.
    let answer = http::exchange(policy, request, LIMIT, |status| !status.is_redirection()).await?;
    let Some(reported) = reported(&answer.body) else {
        return Err(format!("{asked} answered {}, but not with a Prometheus response", answer.status));
    };
    reported.map(Measured::Value)
}

/// What the body of an answer reports; `None` if it is not a response of Prometheus.
fn reported(body: &[u8]) -> Option<Result<Value, String>> {
    let answer = match Json::parse(body) {
        Ok(answer) => answer,
        Err(NotJson::Syntax { .. }) => return None,
        Err(limit) => return Some(Err(format!("Prometheus' answer cannot be read: {limit}"))),
    };
    if text(answer.get("status")?)? != "success" {
        let error = answer.get("error").map_or(Some(""), text)?;
        return Some(Err(format!("Prometheus cannot answer the query: {}", cut(error, MAX_MESSAGE))));
    }
    match answer.get("data") {
        None | Some(Json::Null) => Some(Err("Prometheus' answer contains no result".to_owned())),
        Some(data) => value(data),
    }
}

fn value(data: &Json) -> Option<Result<Value, String>> {
    const KIND: &str = "the query must return a scalar or a vector, not a";
    let result = data.get("result")?;
    Some(match text(data.get("resultType")?)? {
        "scalar" => number(sample(result)?).map(Value::Number),
        "vector" => {
            let Json::List(list) = result else { return None };
            let mut vector = list.iter().map(series).collect::<Option<Vec<_>>>()?;
            vector.sort_by(|a, b| a.labels.cmp(&b.labels));
            let numbers = vector
                .iter()
                .map(|series| series.sample.map_or_else(|| Err(format!("{KIND} histogram")), number));
            numbers.collect::<Result<_, _>>().map(Value::Numbers)
        }
        "string" => Err(format!("{KIND} string")),
        "matrix" => Err(format!("{KIND} range vector")),
        _ => return None,
    })
}

fn series(series: &Json) -> Option<Series<'_>> {
    let Json::Map(metric) = series.get("metric")? else { return None };
    let labels = metric.iter().map(|(name, value)| Some((name.as_str(), text(value)?)));
    let mut labels = labels.collect::<Option<Vec<_>>>()?;
    labels.sort_unstable();
    let sample = match series.get("value") {
        None | Some(Json::Null) => None,
        Some(value) => Some(sample(value)?),
    };
    Some(Series { labels, sample })
}

/// The number of a sample, after its time: it is a text, since JSON has no NaN.
fn sample(sample: &Json) -> Option<&str> {
    let Json::List(pair) = sample else { return None };
    match pair.as_slice() {
        [Json::Number(_), Json::Text(number)] => Some(number),
        _ => None,
    }
}

fn text(json: &Json) -> Option<&str> {
    match json {
        Json::Text(text) => Some(text),
        _ => None,
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "Prometheus' answer contains a value that is not a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &str) -> Result<Value, String> {
        reported(format!(r#"{{"status":"success","data":{data}}}"#).as_bytes()).unwrap()
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
        for answer in [r#"{"status":"success"}"#, r#"{"status":"success","data":null}"#] {
            assert!(reported(answer.as_bytes()).unwrap().unwrap_err().ends_with("no result"), "{answer}");
        }
    }

    #[test]
    fn what_is_no_response_of_prometheus_is_not_read() {
        for body in [
            "<html>",
            "[]",
            r#"{"data":{"resultType":"scalar","result":[1,"1"]}}"#,
            r#"{"status":"success","data":{"resultType":"other","result":[1,"1"]}}"#,
            r#"{"status":"success","data":{"resultType":"scalar","result":[1,1]}}"#,
            r#"{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"1"]}]}}"#,
            r#"{"status":"success","data":{"resultType":"vector"}}"#,
        ] {
            assert_eq!(reported(body.as_bytes()), None, "{body}");
        }
        let refused = reported(br#"{"status":"error","error":"no"}"#);
        assert_eq!(refused, Some(Err("Prometheus cannot answer the query: no".into())));
    }

    #[test]
    fn a_result_before_its_type_is_read_within_limits() {
        assert_eq!(read(r#"{"result":[1,"7"],"resultType":"scalar"}"#), Ok(Value::Number(7.0)));
        let nested = |brackets: &str, count: usize, end: &str| {
            read(&format!(r#"{{"result":[{}{end}],"resultType":"string"}}"#, brackets.repeat(count)))
        };
        let wide = nested("[],", 340_000, "0").unwrap_err();
        assert_eq!(wide, "Prometheus' answer cannot be read: it holds more than 100000 values");
        let deep = nested("[", 500_000, &"]".repeat(500_000)).unwrap_err();
        assert_eq!(deep, "Prometheus' answer cannot be read: it is nested deeper than 64 levels");
    }
}
