-- As `inplace restart` with all regular containers: creates an InPlaceRollout that is deleted one day after its end.
local os = require("os")
local containers = {}
for _, container in ipairs(obj.spec.template.spec.containers) do
  table.insert(containers, {name = container.name})
end
local owner = {apiVersion = obj.apiVersion, kind = obj.kind, name = obj.metadata.name, uid = obj.metadata.uid}
local rollout = {
  apiVersion = "inplace.dev/v1alpha1",
  kind = "InPlaceRollout",
  metadata = {
    name = obj.metadata.name .. "-restart-" .. os.date("!%Y%m%d%H%M%S"),
    namespace = obj.metadata.namespace,
    -- The resource tree shows it below its workload.
    ownerReferences = {owner},
  },
  spec = {
    target = {workloadRef = {apiVersion = obj.apiVersion, kind = obj.kind, name = obj.metadata.name}},
    containers = containers,
    ttlSecondsAfterFinished = 86400,
  },
}
return {{operation = "create", resource = rollout}}
