-- The actions on a GameDeployment or a GameStatefulSet, and which of them have an effect now.
local status = obj.status or {}
local paused = (obj.spec.updateStrategy or {}).paused == true
local step_waits = #(status.pauseConditions or {}) > 0
local failed = false
for _, condition in ipairs(status.conditions or {}) do
  local is_failure = condition.type == "UpdateFailed" or condition.type == "ScaleFailed" or condition.type == "Stalled"
  failed = failed or is_failure and condition.status == "True"
end
return {
  pause = {disabled = paused, displayName = "Pause the update"},
  resume = {disabled = not paused and not step_waits, displayName = "Resume the update, and the canary step that waits"},
  retry = {disabled = not failed, displayName = "Retry failed pods and hooks"},
  restart = {disabled = false, displayName = "Restart all containers in place"},
}
