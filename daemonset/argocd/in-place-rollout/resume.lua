-- As `inplace rollout resume`.
obj.spec.paused = false
return obj
