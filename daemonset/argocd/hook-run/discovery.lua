-- The actions on a HookRun. Also one that has failed can be approved.
local phase = (obj.status or {}).phase or "Pending"
local approved = (obj.metadata.annotations or {})["inplace.dev/approve"] == "true"
local runs = phase == "Pending" or phase == "Running"
return {
  approve = {disabled = approved or phase == "Successful", displayName = "Approve, whatever was measured"},
  terminate = {disabled = not runs or obj.spec.terminate == true, displayName = "Stop measuring; this approves nothing"},
}
