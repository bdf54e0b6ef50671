//! Evaluates the shipped policies as an API server does: constraints, conditions, variables, then one validation
//! after the other. CEL with the extensions of Kubernetes that the policies use: `find` and `findAll`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, Env, ExecutionError, Program, Value as Cel, extensions};
use regex::Regex;
use serde_json::{Value, json};

/// A request to admission.
pub(super) struct Review {
    pub(super) user: String,
    /// The node in the token's claim.
    pub(super) node: Option<&'static str>,
    pub(super) operation: &'static str,
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    pub(super) subresource: &'static str,
    pub(super) old: Value,
    pub(super) new: Value,
}

/// A denial, and the policy that made it.
#[derive(Debug)]
pub(super) struct Denial {
    pub(super) policy: String,
    /// The index of the first validation that does not hold.
    pub(super) validation: usize,
    pub(super) message: String,
}

/// The policies of the file, compiled.
pub(super) struct Policies {
    env: Arc<Env>,
    all: Vec<Policy>,
}

struct Policy {
    name: String,
    rules: Value,
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    validations: Vec<Validation>,
}

struct Validation {
    expression: Program,
    message: Result<String, Program>,
}

impl Policies {
    /// The policies of the shipped file.
    pub(super) fn shipped() -> Self {
        Self::read(&std::fs::read_to_string("daemonset/admission-policy/policy.yaml").unwrap())
    }

    /// The same with one more condition that the agent may set.
    pub(super) fn with_condition(name: &str) -> Self {
        let text = std::fs::read_to_string("daemonset/admission-policy/policy.yaml").unwrap();
        Self::read(&text.replace("['InPlaceUpdateReady']", &format!("['InPlaceUpdateReady', '{name}']")))
    }

    fn read(text: &str) -> Self {
        let mut env = Env::stdlib();
        env.add_extension(extensions::strings).unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        let policies = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
        let all: Vec<_> = policies.map(|object| Policy::read(&env, object)).collect();
        Self { env: Arc::new(env), all }
    }

    /// Each policy with the number of its validations.
    pub(super) fn sizes(&self) -> BTreeMap<String, usize> {
        self.all.iter().map(|policy| (policy.name.clone(), policy.validations.len())).collect()
    }

    /// The first denial; `None`: admitted.
    pub(super) fn denies(&self, review: &Review) -> Option<Denial> {
        self.all.iter().find_map(|policy| policy.denies(&self.env, review))
    }
}

impl Policy {
    fn read(env: &Env, object: &Value) -> Self {
        let spec = &object["spec"];
        let compile = |source: &Value| {
            let source = source.as_str().unwrap();
            env.compile(source).unwrap_or_else(|error| panic!("{source}: {error}"))
        };
        let list = |name: &str| spec[name].as_array().unwrap().iter();
        let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
        assert_eq!(spec["failurePolicy"], "Fail");
        Self {
            name: name(&object["metadata"]),
            rules: spec["matchConstraints"]["resourceRules"].clone(),
            conditions: list("matchConditions").map(|one| compile(&one["expression"])).collect(),
            variables: list("variables").map(|one| (name(one), compile(&one["expression"]))).collect(),
            validations: list("validations")
                .map(|one| Validation {
                    expression: compile(&one["expression"]),
                    message: match &one["message"] {
                        Value::String(text) => Ok(text.clone()),
                        _ => Err(compile(&one["messageExpression"])),
                    },
                })
                .collect(),
        }
    }

    fn denies(&self, env: &Arc<Env>, review: &Review) -> Option<Denial> {
        if !self.matches(review) {
            return None;
        }
        let mut context = Context::with_env(env.clone());
        context.add_function("find", find).unwrap();
        context.add_function("findAll", find_all).unwrap();
        let mut extra = json!({});
        if let Some(node) = review.node {
            extra["authentication.kubernetes.io/node-name"] = json!([node]);
        }
        let mut request =
            json!({"operation": review.operation, "userInfo": {"username": review.user, "extra": extra}});
        if !review.subresource.is_empty() {
            request["subResource"] = review.subresource.into();
        }
        for (name, value) in [("request", &request), ("object", &review.new), ("oldObject", &review.old)] {
            context.add_variable_from_value(name, cel::to_value(value).unwrap());
        }
        if self.conditions.iter().any(|condition| !holds(condition, &context).unwrap()) {
            return None;
        }
        let mut variables: HashMap<String, Cel> = HashMap::new();
        for (name, program) in &self.variables {
            context.add_variable_from_value("variables", variables.clone());
            // A variable that fails is left out, so that an expression that uses it fails: an API server
            // evaluates variables lazily.
            if let Ok(value) = program.execute(&context) {
                variables.insert(name.clone(), value);
            }
        }
        context.add_variable_from_value("variables", variables);
        let denial = |validation, message| Denial { policy: self.name.clone(), validation, message };
        self.validations.iter().enumerate().find_map(|(index, validation)| {
            match holds(&validation.expression, &context) {
                Ok(true) => None,
                Ok(false) => Some(denial(index, validation.says(&context))),
                Err(error) => Some(denial(index, format!("expression failed: {error}"))),
            }
        })
    }

    fn matches(&self, review: &Review) -> bool {
        let names = |rule: &Value, field: &str, name: &str| {
            rule[field].as_array().unwrap().iter().any(|one| one == name || one == "*")
        };
        let resource = match review.subresource {
            "" => review.resource.to_owned(),
            _ => format!("{}/*", review.resource),
        };
        self.rules.as_array().unwrap().iter().any(|rule| {
            names(rule, "apiGroups", review.group)
                && names(rule, "operations", review.operation)
                && rule["resources"].as_array().unwrap().iter().any(|one| one == resource.as_str())
        })
    }
}

impl Validation {
    fn says(&self, context: &Context<'_, '_>) -> String {
        match &self.message {
            Ok(text) => text.clone(),
            Err(program) => match program.execute(context) {
                Ok(Cel::String(text)) => text.to_string(),
                other => panic!("a message that is none: {other:?}"),
            },
        }
    }
}

fn holds(program: &Program, context: &Context<'_, '_>) -> Result<bool, ExecutionError> {
    match program.execute(context)? {
        Cel::Bool(yes) => Ok(yes),
        other => panic!("neither true nor false: {other:?}"),
    }
}

fn pattern(function: &str, source: &str) -> Result<Regex, ExecutionError> {
    Regex::new(source).map_err(|error| ExecutionError::function_error(function, error))
}

#[expect(clippy::needless_pass_by_value, reason = "as CEL calls it")]
fn find(This(text): This<Arc<String>>, source: Arc<String>) -> Result<Cel, ExecutionError> {
    Ok(pattern("find", &source)?.find(&text).map_or("", |found| found.as_str()).into())
}

#[expect(clippy::needless_pass_by_value, reason = "as CEL calls it")]
fn find_all(This(text): This<Arc<String>>, source: Arc<String>) -> Result<Cel, ExecutionError> {
    let found: Vec<Cel> =
        pattern("findAll", &source)?.find_iter(&text).map(|one| one.as_str().into()).collect();
    Ok(found.into())
}
