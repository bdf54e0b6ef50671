-- The actions on an InPlaceRollout; one that has ended has none. Argo CD itself deletes it, as `inplace cancel` does.
local ended = (obj.status or {}).finishedAt ~= nil
local paused = obj.spec.paused == true
return {
  pause = {disabled = ended or paused, displayName = "Pause the rollout"},
  resume = {disabled = ended or not paused, displayName = "Resume the rollout"},
}
