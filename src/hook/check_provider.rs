//! Checks the provider of a metric, and finds all its problems.

use crate::api::hook_template::{Exec, Kubernetes, Prometheus, Provider, Web};
use crate::hook::check::{Check, Invalid};
use crate::hook::json_path;

/// Maximum timeout of one measurement, in seconds: a measurement holds a permit that others wait for.
const MAX_TIMEOUT: i32 = 60;
/// The only fields that the kubernetes provider supports.
const ANNOTATIONS: &str = "metadata.annotations.";

impl Check<'_> {
    /// The problems of the provider, in the order of its fields.
    pub(super) fn provider(&self, provider: &Provider) -> Vec<Invalid> {
        let Provider { web, prometheus, kubernetes, exec } = provider;
        match (web, prometheus, kubernetes, exec) {
            (Some(web), None, None, None) => self.web(web),
            (None, Some(prometheus), None, None) => self.prometheus(prometheus),
            (None, None, Some(kubernetes), None) => self.kubernetes(kubernetes),
            (None, None, None, Some(exec)) => self.exec(exec),
            _ => {
                vec![self.wrong("provider", "there must be exactly one of web, prometheus, kubernetes, exec")]
            }
        }
    }

    fn url(&self, field: &str, text: &str) -> Result<(), Invalid> {
        let url = self.rendered(field, text)?;
        let uri = url.parse::<http::Uri>().ok();
        let scheme = uri.as_ref().and_then(http::Uri::scheme_str);
        if !matches!(scheme, Some("http" | "https")) {
            let problem = "it must be a URL that begins with http:// or https://";
            return Err(self.wrong(field, problem));
        }
        Ok(())
    }

    fn web(&self, web: &Web) -> Vec<Invalid> {
        let mut problems = Vec::new();
        problems.extend(self.url("provider.web.url", &web.url).err());
        for (index, header) in web.headers.iter().enumerate() {
            let field = format!("provider.web.headers[{index}]");
            if http::HeaderName::from_bytes(header.key.as_bytes()).is_err() {
                problems.push(self.wrong(&field, "its key is not the name of an HTTP header"));
                continue;
            }
            match self.rendered(&field, &header.value) {
                Ok(value) if http::HeaderValue::from_str(&value).is_err() => {
                    let problem = "its value contains characters that are not allowed in an HTTP header";
                    problems.push(self.wrong(&field, problem));
                }
                Ok(_) => {}
                Err(invalid) => problems.push(invalid),
            }
        }
        let body = web.body.as_ref().and_then(|body| self.rendered("provider.web.body", body).err());
        problems.extend(body);
        if let Some(path) = web.json_path.as_ref().filter(|path| !path.is_empty()) {
            let wrong = json_path::Path::parse(path).err();
            problems.extend(wrong.map(|error| self.wrong("provider.web.jsonPath", &error.to_string())));
        }
        if web.status_codes.iter().any(|code| !(200..=599).contains(code)) {
            problems.push(self.wrong("provider.web.statusCodes", "each must be 200 to 599"));
        }
        problems.extend(self.timeout("provider.web.timeoutSeconds", web.timeout_seconds));
        problems
    }

    fn timeout(&self, field: &str, seconds: Option<i32>) -> Option<Invalid> {
        seconds
            .filter(|seconds| *seconds > MAX_TIMEOUT)
            .map(|_| self.wrong(field, &format!("it must be at most {MAX_TIMEOUT}")))
    }

    fn prometheus(&self, prometheus: &Prometheus) -> Vec<Invalid> {
        let mut problems = Vec::new();
        problems.extend(self.url("provider.prometheus.address", &prometheus.address).err());
        match self.rendered("provider.prometheus.query", &prometheus.query) {
            Ok(query) if query.trim().is_empty() => {
                problems.push(self.wrong("provider.prometheus.query", "it must not be empty"));
            }
            Ok(_) => {}
            Err(invalid) => problems.push(invalid),
        }
        problems
    }

    fn kubernetes(&self, kubernetes: &Kubernetes) -> Vec<Invalid> {
        if kubernetes.fields.is_empty() {
            return vec![self.wrong("provider.kubernetes.fields", "there must be at least one")];
        }
        let mut problems = Vec::new();
        for (index, field) in kubernetes.fields.iter().enumerate() {
            if field.path.strip_prefix(ANNOTATIONS).is_none_or(str::is_empty) {
                let name = format!("provider.kubernetes.fields[{index}].path");
                problems.push(self.wrong(&name, "only `metadata.annotations.KEY` is supported"));
            }
        }
        problems
    }

    fn exec(&self, exec: &Exec) -> Vec<Invalid> {
        let mut problems = Vec::new();
        if exec.container.is_empty() {
            problems.push(self.wrong("provider.exec.container", "it must not be empty"));
        }
        if exec.command.first().is_none_or(String::is_empty) {
            problems.push(self.wrong("provider.exec.command", "it must name a program"));
        }
        for (index, word) in exec.command.iter().enumerate() {
            problems.extend(self.rendered(&format!("provider.exec.command[{index}]"), word).err());
        }
        problems.extend(self.timeout("provider.exec.timeoutSeconds", exec.timeout_seconds));
        problems
    }
}
