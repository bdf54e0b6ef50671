//! Runs a script of `daemonset/argocd` as Argo CD does: Lua 5.1 with the libraries `base` and `table` and a part of `os`, the
//! object in the global variable `obj`, and the returned table as JSON. Must not know what a script does.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

/// Runs the script and prints what it returns. As in Argo CD an empty table is a list.
const FRAME: &str = r#"
local format, gsub, byte, concat = string.format, string.gsub, string.byte, table.concat
getmetatable("").__index = nil
local function text(value)
  local escaped = gsub(value, '[%c"\\]', function(c) return format("\\u%04x", byte(c)) end)
  return '"' .. escaped .. '"'
end
local function json(value)
  if type(value) == "string" then return text(value) end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  if next(value) == nil or value[1] ~= nil then
    for _, item in ipairs(value) do parts[#parts + 1] = json(item) end
    return "[" .. concat(parts, ",") .. "]"
  end
  for key, item in pairs(value) do parts[#parts + 1] = text(key) .. ":" .. json(item) end
  return "{" .. concat(parts, ",") .. "}"
end
local os = {time = os.time, date = os.date, clock = os.clock, difftime = os.difftime}
local function require(name) assert(name == "os", "no library " .. name) return os end
local script = assert(loadfile(arg[1]))
setfenv(script, {obj = obj, table = table, os = os, require = require, ipairs = ipairs, pairs = pairs, next = next, type = type,
  tostring = tostring, tonumber = tonumber, select = select, unpack = unpack, error = error, assert = assert, pcall = pcall})
local returned = script()
assert(type(returned) == "table", "no table")
io.write(json(returned))
"#;

/// What the script `daemonset/argocd/NAME.lua` returns for `object`.
pub(super) fn run(name: &str, object: &Value) -> Value {
    let mut program = "obj = ".to_owned();
    literal(object, &mut program);
    program.push_str(FRAME);
    let mut lua = Command::new("lua5.1")
        .args(["-", &format!("daemonset/argocd/{name}.lua")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("lua5.1: {error}; run: make setup"));
    lua.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = lua.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}: {}\n{object:#}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The value as an expression of Lua.
fn literal(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("nil"),
        Value::Bool(value) => write!(out, "{value}").unwrap(),
        Value::Number(value) => write!(out, "{value}").unwrap(),
        Value::String(value) => quoted(value, out),
        Value::Array(items) => {
            out.push('{');
            for item in items {
                literal(item, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Object(fields) => {
            out.push('{');
            for (key, field) in fields {
                out.push('[');
                quoted(key, out);
                out.push_str("]=");
                literal(field, out);
                out.push(',');
            }
            out.push('}');
        }
    }
}

fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for byte in text.bytes() {
        write!(out, "\\{byte:03}").unwrap();
    }
    out.push('"');
}

/// An object that an action returned, with the empty maps of the object from before: Lua knows only empty tables.
pub(super) fn with_maps_of(returned: Value, before: &Value) -> Value {
    match (returned, before) {
        (Value::Array(items), Value::Object(old)) if items.is_empty() => Value::Object(old.clone()),
        (Value::Object(fields), Value::Object(old)) => {
            let cleaned = fields.into_iter().map(|(key, field)| {
                let before = old.get(&key).cloned().unwrap_or_default();
                (key, with_maps_of(field, &before))
            });
            Value::Object(cleaned.collect::<Map<_, _>>())
        }
        (Value::Array(items), Value::Array(old)) => {
            let cleaned = items.into_iter().enumerate();
            let before = |at: usize| old.get(at).cloned().unwrap_or_default();
            Value::Array(cleaned.map(|(at, item)| with_maps_of(item, &before(at))).collect())
        }
        (other, _) => other,
    }
}
