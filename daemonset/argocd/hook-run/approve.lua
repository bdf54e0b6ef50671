obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["inplace.dev/approve"] = "true"
return obj
