-- The controller retries failed pods and hooks, ends an abort, and removes the annotation.
obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["inplace.dev/retry"] = "true"
return obj
