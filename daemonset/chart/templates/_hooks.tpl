{{- define "inplace.hookArgs" -}}
{{- with .Values.hooks.allow }}
- {{ printf "--hook-allow=%s" (join "," .) | quote }}
{{- end }}
{{- with .Values.hooks.deny }}
- {{ printf "--hook-deny=%s" (join "," .) | quote }}
{{- end }}
{{- if not .Values.hooks.exec }}
- --hook-exec=false
{{- end }}
{{- end -}}
{{- define "inplace.guardArgs" -}}
{{- if ne (join "," .Values.deleteGuard.exemptUsers) "system:kube-scheduler" }}
- {{ printf "--guard-exempt-users=%s" (join "," .Values.deleteGuard.exemptUsers) | quote }}
{{- end }}
{{- with .Values.deleteGuard.exemptGroups }}
- {{ printf "--guard-exempt-groups=%s" (join "," .) | quote }}
{{- end }}
{{- with .Values.deleteGuard.longestHold }}
- {{ printf "--guard-longest-hold=%s" . | quote }}
{{- end }}
{{- if .Values.deleteGuard.labelledNamespacesOnly }}
- --guard-labelled-namespaces-only
{{- end }}
{{- end -}}
