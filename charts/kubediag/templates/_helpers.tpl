{{/*
The folder config of this chart is a copy of the source tree's. The templates here print its objects, and put in the namespace of
the release and the values. "make generate" writes the copy.
*/}}

{{/* kubediag.text is the text of a file, with the namespace of the release and its name in labels and selectors. Arguments: root, file. */}}
{{- define "kubediag.text" -}}
{{- .root.Files.Get .file
  | replace "app.kubernetes.io/name: kubediag" (printf "app.kubernetes.io/name: %s" (include "kubediag.name" .root))
  | replace "system:serviceaccount:kubediag:" (printf "system:serviceaccount:%s:" .root.Release.Namespace)
  | replace " -n kubediag " (printf " -n %s " .root.Release.Namespace) -}}
{{- end }}

{{/* kubediag.name is the label app.kubernetes.io/name of every object. */}}
{{- define "kubediag.name" -}}
{{- .Values.nameOverride | default "kubediag" }}
{{- end }}

{{/* kubediag.labels are the labels of every object. */}}
{{- define "kubediag.labels" -}}
app.kubernetes.io/name: {{ include "kubediag.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: kubediag
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* kubediag.object prints an object in the namespace of the release. Arguments: root, object; labels, annotations to add. */}}
{{- define "kubediag.object" -}}
{{- $meta := .object.metadata }}
{{- $own := $meta.labels | default dict }}
{{- if $meta.namespace }}{{ $_ := set $meta "namespace" .root.Release.Namespace }}{{ end }}
{{- range .object.subjects }}{{ $_ := set . "namespace" $.root.Release.Namespace }}{{ end }}
{{- $_ := set $meta "labels" (merge (dict) (.labels | default dict) (include "kubediag.labels" .root | fromYaml) $own .root.Values.commonLabels) }}
{{- $annotations := merge (dict) (.annotations | default dict) ($meta.annotations | default dict) }}
{{- with and (eq .object.kind "ServiceAccount") (index $own "app.kubernetes.io/component") }}
{{- $annotations = merge $annotations (index $.root.Values . "serviceAccount" "annotations") }}
{{- end }}
{{- with merge $annotations .root.Values.commonAnnotations }}{{ $_ := set $meta "annotations" . }}{{ end }}
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

{{/* kubediag.image is the whole name of an image. Arguments: root, image. */}}
{{- define "kubediag.image" -}}
{{- $name := .image.repository }}
{{- if not (contains "/" $name) }}
{{- $registry := (.root.Values.global | default dict).imageRegistry | default .root.Values.image.registry }}
{{- $name = printf "%s/%s" (required "image.registry: set the registry that has the images, such as registry.example.org/kubediag, or localhost/kubediag if make image made them and each node has loaded them" $registry) $name }}
{{- end }}
{{- with .image.digest }}{{ printf "%s@%s" $name . }}{{ else }}{{ printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion) }}{{ end }}
{{- end }}

{{/*
kubediag.policy is not empty if a policy of the API server is installed. Arguments: root, name of the policy, wanted.
With "auto" it is installed where API servers serve such policies, but an upgrade does not add it.
*/}}
{{- define "kubediag.policy" -}}
{{- $wanted := toString .wanted }}
{{- if has $wanted (list "on" "true") }}on
{{- else if eq $wanted "auto" }}
{{- if semverCompare ">=1.30.0-0" .root.Capabilities.KubeVersion.Version }}
{{- if or .root.Release.IsInstall (lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy" "" .name) }}on{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* kubediag.recoveryMode is the mode of the release's RecoveryPolicy. YAML reads Off as false. */}}
{{- define "kubediag.recoveryMode" -}}
{{- .Values.recovery.mode | toString | replace "false" "Off" }}
{{- end }}

{{/* kubediag.kindsServed is not empty if the API server serves the kinds of kubediag, or if they do not come with this release. */}}
{{- define "kubediag.kindsServed" -}}
{{- if or (not .Values.crds.install) (.Capabilities.APIVersions.Has "diagnosis.kubediag.org/v1/RecoveryPolicy") }}yes{{ end }}
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
{{- with $values.extraEnv }}{{ $_ := set $container "env" (concat $container.env .) }}{{ end }}
{{- with $values.volumes }}{{ $_ := set $pod "volumes" (concat ($pod.volumes | default list) .) }}{{ end }}
{{- with $values.volumeMounts }}{{ $_ := set $container "volumeMounts" (concat ($container.volumeMounts | default list) .) }}{{ end }}

{{- /* fields that are replaced */}}
{{- $_ := set $container "image" (include "kubediag.image" (dict "root" .root "image" $values.image)) }}
{{- $_ := set $container "imagePullPolicy" $values.image.pullPolicy }}
{{- $_ := set $container "resources" $values.resources }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- $_ := unset $pod $key }}
{{- with index $values $key }}{{ $_ := set $pod $key . }}{{ end }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}

{{- /* fields that are changed in part */}}
{{- range $key := list "livenessProbe" "readinessProbe" "securityContext" }}
{{- with index $values $key }}{{ $_ := set $container $key (mergeOverwrite (index $container $key) .) }}{{ end }}
{{- end }}
{{- with $values.podSecurityContext }}{{ $_ := set $pod "securityContext" (mergeOverwrite ($pod.securityContext | default dict) .) }}{{ end }}
{{- $_ := set $template.metadata "labels" (merge (dict) $template.metadata.labels $values.podLabels .root.Values.commonLabels) }}
{{- with merge (dict) $values.podAnnotations ($template.metadata.annotations | default dict) .root.Values.commonAnnotations }}
{{- $_ := set $template.metadata "annotations" . }}
{{- end }}
{{- include "kubediag.object" . }}
{{- end }}
