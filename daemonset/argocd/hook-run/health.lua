-- The health of a HookRun, from its phase.
local status = obj.status or {}
local phase = status.phase or "Pending"
local names = {Successful = "Healthy", Failed = "Degraded", Error = "Degraded", Inconclusive = "Degraded"}
return {status = names[phase] or "Progressing", message = phase .. ": " .. (status.message or "")}
