{{/* Each model as a context of its own: .Values with the entry's values, .name, .labels, .Release, .Chart, .Files. */}}
{{- define "models" -}}
{{- $root := . -}}
{{- $base := omit .Values "models" -}}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $contexts := list -}}
{{- range (.Values.models | default (list dict)) -}}
{{- $values := mergeOverwrite (deepCopy $base) (omit . "name") -}}
{{- $name := trunc 45 (ternary (printf "%s-%s" $release .name) $release (hasKey . "name")) | trimSuffix "-" -}}
{{- $labels := dict "app.kubernetes.io/name" $root.Chart.Name "app.kubernetes.io/instance" $name -}}
{{- $contexts = append $contexts (dict "Values" $values "name" $name "labels" $labels "Version" $root.Chart.AppVersion) -}}
{{- end -}}
{{- $contexts | toYaml -}}
{{- end -}}

{{- define "image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Version (ternary "-cuda" "" .Values.gpu)) }}
{{- end -}}

{{- define "metadata" -}}
metadata:
  name: {{ .name }}
  labels: {{ toJson .labels }}
{{- end -}}

{{/* A models file names its models itself. */}}
{{- define "settings" -}}
{{- $given := .Values.settings -}}
{{- if .Values.modelsFile -}}
{{- $given = merge (dict "MODELS_FILE" "/models/models.toml") (omit .Values.settings "MODEL_ID" "REVISION") -}}
{{- end -}}
{{ toYaml $given }}
{{- end -}}

{{- define "mounts" -}}
- name: models
  mountPath: /data
- name: temporary
  mountPath: /tmp
{{- if .Values.modelsFile }}
- name: models-file
  mountPath: /models
  readOnly: true
{{- end }}
{{- end -}}
