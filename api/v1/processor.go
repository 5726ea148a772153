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

// Target names the target of the call for people: the name of a built-in processor or a URL.
func (c Call) Target() string {
	if c.URL != nil {
		return c.URL.String()
	}
	return c.BuiltIn
}

// Call normalises every form of a Processor. The errors name the fields below path and the values; where there are
// any, only the Kind of the Call can be relied on.
func (p *Processor) Call(path *field.Path) (Call, field.ErrorList) {
	forms := setFields([]namedField{
		{formFlat, p.ExternalIP != nil || p.ExternalAddress != nil || p.ExternalPort != nil || p.Path != nil || p.Scheme != nil},
		{formHTTP, p.HTTPServer != nil},
		{formScript, p.ScriptRunner != nil},
		{formFunction, p.Function != nil},
	})
	if len(forms) != 1 {
		return Call{}, field.ErrorList{field.Invalid(path, strings.Join(forms, ","),
			"exactly one form must be set: path (with externalAddress, externalPort and scheme), httpServer, scriptRunner or function")}
	}
	var call Call
	var errs field.ErrorList
	switch forms[0] {
	case formFlat:
		call, errs = p.flat(path).call()
	case formHTTP:
		s := p.HTTPServer
		call, errs = endpoint{
			at: path.Child(formHTTP), addressField: "address", portField: "port",
			address: s.Address, port: s.Port, path: s.Path, scheme: s.Scheme, validAddress: isHost,
		}.call()
	case formScript:
		call = Call{Kind: ProcessorScript, Script: p.ScriptRunner}
		at, script := path.Child(formScript, "script"), p.ScriptRunner.Script
		if script == "" {
			errs = append(errs, field.Required(at, "must not be empty"))
		}
		if len(script) > MaxScriptBytes {
			errs = append(errs, field.TooLong(at, "", MaxScriptBytes))
		}
	case formFunction:
		call = Call{Kind: ProcessorFunction}
	}
	errs = append(errs, validateRanges(path, []optionalRange{{"timeoutSeconds", p.TimeoutSeconds, 1, MaxTimeoutSeconds}})...)
	call.Timeout = seconds(p.TimeoutSeconds, DefaultTimeoutSeconds)
	return call, errs
}

// Names of the forms, as they appear in errors.
const (
	formFlat     = "path"
	formHTTP     = "httpServer"
	formScript   = "scriptRunner"
	formFunction = "function"
)

// flat is the endpoint of the flat form. If both addresses are set, externalAddress fails as a whole.
func (p *Processor) flat(path *field.Path) endpoint {
	e := endpoint{
		at: path, addressField: "externalAddress", portField: "externalPort",
		address: p.ExternalAddress, port: p.ExternalPort, path: p.Path, scheme: p.Scheme, validAddress: isHost,
	}
	switch {
	case p.ExternalIP != nil && p.ExternalAddress != nil:
		e.validAddress = func(string) string { return "must not be set together with externalIP" }
	case p.ExternalIP != nil:
		e.address, e.addressField = p.ExternalIP, "externalIP"
		e.validAddress = func(address string) string {
			if net.ParseIP(address) == nil {
				return "must be an IP address"
			}
			return ""
		}
	}
	return e
}

// endpoint has the fields that the flat and the nested form have in common.
type endpoint struct {
	at                      *field.Path
	addressField, portField string
	address, path, scheme   *string
	port                    *int32
	validAddress            func(string) string // returns the problem
}

func (e endpoint) call() (Call, field.ErrorList) {
	errs := e.validate()
	path := orDefault(e.path, "/")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // as KubeDiag does
	}
	if e.address == nil {
		name, ok := strings.CutPrefix(path, BuiltInPathPrefix)
		if !ok || name == "" || strings.Contains(name, "/") {
			errs = append(errs, field.Invalid(e.at.Child("path"), orDefault(e.path, ""),
				"must be /processor/<name> of a built-in processor where "+e.addressField+" is not set"))
		}
		return Call{Kind: ProcessorBuiltIn, BuiltIn: name}, errs
	}
	u, err := url.Parse(path)
	if err != nil || u.Host != "" || u.User != nil {
		return Call{Kind: ProcessorHTTP}, append(errs, field.Invalid(e.at.Child("path"), path, "must be the path of a URL"))
	}
	u.Scheme = orDefault(e.scheme, "http")
	port := int32(80)
	if u.Scheme == "https" {
		port = 443
	}
	u.Host = net.JoinHostPort(*e.address, strconv.Itoa(int(orDefault(e.port, port))))
	return Call{Kind: ProcessorHTTP, URL: u}, errs
}

func (e endpoint) validate() field.ErrorList {
	var errs field.ErrorList
	if e.address != nil {
		if wrong := e.validAddress(*e.address); wrong != "" {
			errs = append(errs, field.Invalid(e.at.Child(e.addressField), *e.address, wrong))
		}
	}
	if e.port != nil {
		errs = append(errs, validateRange(e.at.Child(e.portField), *e.port, 1, 65535)...)
	}
	if e.scheme != nil && *e.scheme != "http" && *e.scheme != "https" {
		errs = append(errs, field.NotSupported(e.at.Child("scheme"), *e.scheme, []string{"http", "https"}))
	}
	return errs
}

// isHost accepts capitals and the underscore, as resolvers and KubeDiag do.
func isHost(address string) string {
	name := strings.ReplaceAll(strings.ToLower(address), "_", "-")
	if net.ParseIP(address) == nil && len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "must be an IP address or a DNS name"
	}
	return ""
}
