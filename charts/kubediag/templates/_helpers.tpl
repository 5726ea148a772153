{{/*
The folder config of this chart is a copy of the source tree's. The templates here print its objects, and put in the namespace of
the release and the values. "make generate" writes the copy.
*/}}

{{/* kubediag.text is the text of a file, with the namespace of the release where it speaks of one. Arguments: root, file. */}}
{{- define "kubediag.text" -}}
{{- .root.Files.Get .file
  | replace "system:serviceaccount:kubediag:" (printf "system:serviceaccount:%s:" .root.Release.Namespace)
  | replace " -n kubediag " (printf " -n %s " .root.Release.Namespace) -}}
{{- end }}

{{/* kubediag.object prints an object in the namespace of the release. Arguments: root, object; labels, annotations to add. */}}
{{- define "kubediag.object" -}}
{{- $meta := .object.metadata }}
{{- if $meta.namespace }}{{ $_ := set $meta "namespace" .root.Release.Namespace }}{{ end }}
{{- range .object.subjects }}{{ $_ := set . "namespace" $.root.Release.Namespace }}{{ end }}
{{- range $key := list "labels" "annotations" }}
{{- with index $ $key }}{{ $_ := set $meta $key (merge (dict) . (index $meta $key | default dict)) }}{{ end }}
{{- end }}
---
{{ toYaml .object }}
{{- end }}

{{/* kubediag.files prints the objects of all files of a glob. Arguments: those of kubediag.object, with files for object. */}}
{{- define "kubediag.files" -}}
{{- range $file, $_ := .root.Files.Glob .files }}
{{- range regexSplit "(?m)^---$" (include "kubediag.text" (dict "root" $.root "file" $file)) -1 }}
{{- with fromYaml . }}
{{ include "kubediag.object" (dict "root" $.root "object" . "labels" $.labels "annotations" $.annotations) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* kubediag.workload prints the Deployment or DaemonSet of a program. Arguments: root, object, values, and patches of components. */}}
{{- define "kubediag.workload" -}}
{{- $values := .values }}
{{- $template := .object.spec.template }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}

{{- /* lists that are longer: in components, in values */}}
{{- range $patch := .patches }}
{{- range $key, $items := omit (first $patch.spec.template.spec.containers) "name" }}
{{- $_ := set $container $key (concat $items (index $container $key | default list)) }}
{{- end }}
{{- end }}
{{- range $flag, $value := $values.flags }}
{{- $text := kindIs "string" $value | ternary $value (toJson $value) }}
{{- $_ := set $container "args" (append ($container.args | default list) (printf "--%s=%s" $flag $text)) }}
{{- end }}
{{- with $values.volumes }}{{ $_ := set $pod "volumes" (concat ($pod.volumes | default list) .) }}{{ end }}
{{- with $values.volumeMounts }}{{ $_ := set $container "volumeMounts" (concat ($container.volumeMounts | default list) .) }}{{ end }}

{{- /* fields that are replaced */}}
{{- $version := printf ":%s" ($values.image.tag | default .root.Chart.AppVersion) }}
{{- with $values.image.digest }}{{ $version = printf "@%s" . }}{{ end }}
{{- $image := $values.image.repository }}
{{- if not (contains "/" $image) }}
{{- $registry := (.root.Values.global | default dict).imageRegistry | default .root.Values.image.registry }}
{{- $image = printf "%s/%s" (required "image.registry: set the registry that has the images, such as registry.example.org/kubediag, or localhost/kubediag if make image made them and each node has loaded them" $registry) $image }}
{{- end }}
{{- $_ := set $container "image" (printf "%s%s" $image $version) }}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy }}
{{- $_ := set $container "resources" $values.resources }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- $_ := unset $pod $key }}
{{- with index $values $key }}{{ $_ := set $pod $key . }}{{ end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}

{{- with $values.podLabels }}{{ $_ := set $template.metadata "labels" (merge (dict) $template.metadata.labels .) }}{{ end }}
{{- with $values.podAnnotations }}
{{- $_ := set $template.metadata "annotations" (merge (dict) . ($template.metadata.annotations | default dict)) }}
{{- end }}
{{- include "kubediag.object" . }}
{{- end }}
