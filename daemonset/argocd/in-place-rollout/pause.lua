-- As `inplace rollout pause`.
obj.spec.paused = true
return obj
