-- As `inplace rollout resume`: also approves the canary step that waits.
local status = obj.status or {}
local strategy = obj.spec.updateStrategy or {}
if strategy.paused then
  strategy.paused = false
end
if #(status.pauseConditions or {}) > 0 and status.currentStepIndex ~= nil then
  obj.metadata.annotations = obj.metadata.annotations or {}
  obj.metadata.annotations["inplace.dev/resume-step"] = (status.updateRevision or "") .. "/" .. status.currentStepIndex
end
return obj
