-- The health of a GameDeployment or a GameStatefulSet, from the conditions Ready, Reconciling and Stalled: at most one of them is True.
local status = obj.status or {}
if (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "the controller has not observed the latest change yet"}
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

local function health(name, kind)
  local condition = conditions[kind]
  return {status = name, message = (condition.reason or "") .. ": " .. (condition.message or "")}
end

-- A pause of the user and one of a canary step end only by a person, unless the pause of the step has a duration.
local function waits_for_person()
  local strategy = obj.spec.updateStrategy or {}
  local reason = conditions.Reconciling.reason
  if strategy.paused then
    return reason == "Paused" or reason == "Aborting"
  end
  local pause = (status.pauseConditions or {})[1]
  local steps = (strategy.canary or {}).steps or {}
  local step = steps[(status.currentStepIndex or 0) + 1] or {}
  local timed = pause ~= nil and pause.reason == "PausedByCanaryPauseStep" and step.pause ~= nil and step.pause.duration ~= nil
  return reason == "Paused" and not timed
end

if conditions.Ready == nil then
  return {status = "Progressing", message = "the status has no condition Ready"}
elseif is("Stalled") then
  return health("Degraded", "Stalled")
elseif is("Ready") then
  return health("Healthy", "Ready")
elseif is("Reconciling") and waits_for_person() then
  return health("Suspended", "Reconciling")
end
-- Also if none of the three is True: nothing is left to do, and pods are not available.
return health("Progressing", "Ready")
