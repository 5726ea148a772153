// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ProcessorKind says how a processor is run.
//
// +kubebuilder:validation:Enum=BuiltIn;HTTP;Script;Function
type ProcessorKind string

// Kinds of processors.
const (
	ProcessorBuiltIn  ProcessorKind = "BuiltIn"
	ProcessorHTTP     ProcessorKind = "HTTP"
	ProcessorScript   ProcessorKind = "Script"
	ProcessorFunction ProcessorKind = "Function"
)

// Call is a Processor in the one form that the rest of the system knows, every default filled in.
//
// +kubebuilder:object:generate=false
type Call struct {
	Kind    ProcessorKind
	Timeout time.Duration // of one attempt
	// BuiltIn is the name of the built-in processor, such as mountInfoCollector.
	BuiltIn string
	// URL of the HTTP processor.
	URL *url.URL
	// Script to run.
	Script *ScriptRunner
}

// Target is what the call reaches, for people: the name of a built-in processor or a URL.
func (c Call) Target() string {
	if c.URL != nil {
		return c.URL.String()
	}
	return c.BuiltIn
}

// Call normalises every form of a Processor. The errors name the fields below path and the values.
func (p *Processor) Call(path *field.Path) (Call, field.ErrorList) {
	forms := p.forms()
	if len(forms) != 1 {
		return Call{}, field.ErrorList{field.Invalid(path, strings.Join(forms, ","),
			"exactly one form must be set: path (with externalAddress, externalPort and scheme), httpServer, scriptRunner or function")}
	}
	call, errs := p.callOf(forms[0], path)
	seconds := DefaultTimeoutSeconds
	if p.TimeoutSeconds != nil {
		seconds = *p.TimeoutSeconds
	}
	if seconds < 1 || seconds > MaxTimeoutSeconds {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), seconds, "must be between 1 and 3600"))
	}
	call.Timeout = time.Duration(seconds) * time.Second
	return call, errs
}

// Names of the forms, as they appear in errors.
const (
	formFlat     = "path"
	formHTTP     = "httpServer"
	formScript   = "scriptRunner"
	formFunction = "function"
)

func (p *Processor) forms() []string {
	var forms []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{formFlat, p.ExternalIP != nil || p.ExternalAddress != nil || p.ExternalPort != nil || p.Path != nil || p.Scheme != nil},
		{formHTTP, p.HTTPServer != nil},
		{formScript, p.ScriptRunner != nil},
		{formFunction, p.Function != nil},
	} {
		if f.set {
			forms = append(forms, f.name)
		}
	}
	return forms
}

func (p *Processor) callOf(form string, path *field.Path) (Call, field.ErrorList) {
	switch form {
	case formScript:
		return Call{Kind: ProcessorScript, Script: p.ScriptRunner}, validateScript(p.ScriptRunner, path.Child(formScript))
	case formFunction:
		return Call{Kind: ProcessorFunction}, nil
	case formHTTP:
		s := p.HTTPServer
		return endpoint{
			address: s.Address, port: s.Port, path: s.Path, scheme: s.Scheme,
			at: path.Child(formHTTP), addressField: "address", portField: "port",
		}.call()
	}
	if p.ExternalIP != nil && p.ExternalAddress != nil {
		return Call{}, field.ErrorList{field.Invalid(path.Child("externalAddress"), *p.ExternalAddress, "must not be set together with externalIP")}
	}
	e := endpoint{
		address: p.ExternalAddress, port: p.ExternalPort, path: p.Path, scheme: p.Scheme,
		at: path, addressField: "externalAddress", portField: "externalPort",
	}
	if p.ExternalIP != nil {
		e.address, e.addressField = p.ExternalIP, "externalIP"
	}
	return e.call()
}

// endpoint is what the flat and the nested form have in common.
type endpoint struct {
	address, path, scheme   *string
	port                    *int32
	at                      *field.Path
	addressField, portField string
}

func (e endpoint) call() (Call, field.ErrorList) {
	errs := e.validate()
	path := value(e.path, "/")
	if e.address == nil {
		name := strings.TrimPrefix(path, BuiltInPathPrefix)
		if name == path || name == "" || strings.Contains(name, "/") {
			errs = append(errs, field.Invalid(e.at.Child("path"), path, "must be /processor/<name> of a built-in processor where no "+e.addressField+" is set"))
		}
		return Call{Kind: ProcessorBuiltIn, BuiltIn: name}, errs
	}
	scheme := value(e.scheme, "http")
	port := int32(80)
	if scheme == "https" {
		port = 443
	}
	if e.port != nil {
		port = *e.port
	}
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" {
		return Call{Kind: ProcessorHTTP}, append(errs, field.Invalid(e.at.Child("path"), path, "must be the path of a URL"))
	}
	u.Scheme, u.Host = scheme, net.JoinHostPort(*e.address, strconv.Itoa(int(port)))
	return Call{Kind: ProcessorHTTP, URL: u}, errs
}

func (e endpoint) validate() field.ErrorList {
	var errs field.ErrorList
	if e.address != nil && net.ParseIP(*e.address) == nil && len(validation.IsDNS1123Subdomain(*e.address)) > 0 {
		errs = append(errs, field.Invalid(e.at.Child(e.addressField), *e.address, "must be an IP address or a DNS name"))
	}
	if e.port != nil && (*e.port < 1 || *e.port > 65535) {
		errs = append(errs, field.Invalid(e.at.Child(e.portField), *e.port, "must be between 1 and 65535"))
	}
	if e.scheme != nil && *e.scheme != "http" && *e.scheme != "https" {
		errs = append(errs, field.NotSupported(e.at.Child("scheme"), *e.scheme, []string{"http", "https"}))
	}
	if e.path != nil && !strings.HasPrefix(*e.path, "/") {
		errs = append(errs, field.Invalid(e.at.Child("path"), *e.path, "must begin with /"))
	}
	return errs
}

func validateScript(s *ScriptRunner, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Script == "" {
		errs = append(errs, field.Required(path.Child("script"), "must not be empty"))
	}
	if len(s.Script) > MaxScriptBytes {
		errs = append(errs, field.TooLong(path.Child("script"), "", MaxScriptBytes))
	}
	return errs
}

func value(s *string, otherwise string) string {
	if s == nil {
		return otherwise
	}
	return *s
}
