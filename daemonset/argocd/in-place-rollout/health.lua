-- The health of an InPlaceRollout, from the conditions Ready, Reconciling and Stalled: at most one of them is True.
local status = obj.status or {}
local ended = status.finishedAt ~= nil
if not ended and (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "the controller has not observed the latest change yet"}
end

local message = (status.phase or "") .. ": " .. (status.message or "")
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "True" then
    if condition.type == "Stalled" then
      return {status = "Degraded", message = message}
    elseif condition.type == "Ready" then
      return {status = "Healthy", message = message}
    elseif condition.type == "Reconciling" and obj.spec.paused and (status.phase == "Paused" or status.phase == "Aborting") then
      return {status = "Suspended", message = message}
    end
  end
end
return {status = "Progressing", message = message}
