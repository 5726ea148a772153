// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// processorOf reads a processor as it stands in a manifest.
func processorOf(t *testing.T, manifest string) *Processor {
	t.Helper()
	var p Processor
	if err := yaml.UnmarshalStrict([]byte(manifest), &p); err != nil {
		t.Fatalf("reading %s: %v", manifest, err)
	}
	return &p
}

func TestCall(t *testing.T) {
	t.Parallel()
	type want struct {
		Kind    ProcessorKind
		Target  string
		Timeout time.Duration
	}
	for name, tc := range map[string]struct {
		processor string
		want      want
	}{
		"flat, built in": {
			"{path: /processor/podDetailCollector, scheme: http, timeoutSeconds: 60}",
			want{ProcessorBuiltIn, "podDetailCollector", time.Minute},
		},
		"flat, no slash in front": {"{path: processor/podDetailCollector}", want{ProcessorBuiltIn, "podDetailCollector", 30 * time.Second}},
		"flat, port without address": {
			"{path: /processor/podDetailCollector, externalPort: 8090}",
			want{ProcessorBuiltIn, "podDetailCollector", 30 * time.Second},
		},
		"v0.2.0, address":       {"{externalIP: 10.0.0.1, externalPort: 8080, path: /a/b}", want{ProcessorHTTP, "http://10.0.0.1:8080/a/b", 30 * time.Second}},
		"v0.2.0, address alone": {"{externalIP: 10.0.0.1}", want{ProcessorHTTP, "http://10.0.0.1:80/", 30 * time.Second}},
		"v0.2.0, IPv6":          {"{externalIP: 'fd00::1', scheme: https}", want{ProcessorHTTP, "https://[fd00::1]:443/", 30 * time.Second}},
		"externalAddress, name": {"{externalAddress: p.example.com, path: 'x?y=z'}", want{ProcessorHTTP, "http://p.example.com:80/x?y=z", 30 * time.Second}},
		"externalAddress, capitals and underscore": {
			"{externalAddress: My_Host.Example.COM}", want{ProcessorHTTP, "http://My_Host.Example.COM:80/", 30 * time.Second},
		},
		"httpServer":              {"{httpServer: {address: 10.0.0.1, port: 65535, path: /, scheme: https}}", want{ProcessorHTTP, "https://10.0.0.1:65535/", 30 * time.Second}},
		"httpServer, built in":    {"{httpServer: {path: /processor/x}, timeoutSeconds: 1}", want{ProcessorBuiltIn, "x", time.Second}},
		"httpServer, service":     {"{httpServer: {address: svc.ns, port: 1}}", want{ProcessorHTTP, "http://svc.ns:1/", 30 * time.Second}},
		"scriptRunner":            {"{scriptRunner: {script: 'df -h', argKeys: [a], operationResultKey: k}}", want{ProcessorScript, "", 30 * time.Second}},
		"function":                {"{function: {codeSource: {a.py: x}, runtime: python3}}", want{ProcessorFunction, "", 30 * time.Second}},
		"the longest timeout":     {"{path: /processor/x, timeoutSeconds: 86400}", want{ProcessorBuiltIn, "x", 24 * time.Hour}},
		"path that needs escapes": {"{externalIP: 10.0.0.1, path: '/a b'}", want{ProcessorHTTP, "http://10.0.0.1:80/a%20b", 30 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call, errs := processorOf(t, tc.processor).Call(field.NewPath("spec", "processor"))
			if len(errs) > 0 {
				t.Fatalf("refused: %v", errs.ToAggregate())
			}
			if diff := cmp.Diff(tc.want, want{call.Kind, call.Target(), call.Timeout}); diff != "" {
				t.Errorf("call (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCallRefuses(t *testing.T) {
	t.Parallel()
	const p = "spec.processor"
	for name, tc := range map[string]struct {
		processor string
		want      []string // in the text of the errors
	}{
		"none":                      {"{}", []string{p, `""`, "exactly one form"}},
		"only a timeout":            {"{timeoutSeconds: 5}", []string{p, "exactly one form"}},
		"flat and nested":           {"{path: /processor/x, httpServer: {path: /processor/x}}", []string{p, `"path,httpServer"`}},
		"nested and script":         {"{httpServer: {}, scriptRunner: {script: x}}", []string{p, `"httpServer,scriptRunner"`}},
		"script and function":       {"{scriptRunner: {script: x}, function: {}}", []string{p, `"scriptRunner,function"`}},
		"two addresses":             {"{externalIP: 10.0.0.1, externalAddress: a.b}", []string{p + ".externalAddress", `"a.b"`, "externalIP"}},
		"port 0":                    {"{externalIP: 10.0.0.1, externalPort: 0}", []string{p + ".externalPort", " 0:", "between 1 and 65535"}},
		"port 70000":                {"{httpServer: {address: a.b, port: 70000}}", []string{p + ".httpServer.port", "70000"}},
		"port -1, no address":       {"{path: /processor/x, externalPort: -1}", []string{p + ".externalPort", "-1"}},
		"scheme ftp":                {"{path: /processor/x, scheme: ftp}", []string{p + ".scheme", `"ftp"`, `"https"`}},
		"nested scheme":             {"{httpServer: {path: /processor/x, scheme: HTTP}}", []string{p + ".httpServer.scheme", `"HTTP"`}},
		"timeout 0":                 {"{path: /processor/x, timeoutSeconds: 0}", []string{p + ".timeoutSeconds", " 0:"}},
		"timeout negative":          {"{scriptRunner: {script: x}, timeoutSeconds: -5}", []string{p + ".timeoutSeconds", "-5"}},
		"timeout too long":          {"{path: /processor/x, timeoutSeconds: 86401}", []string{p + ".timeoutSeconds", "86401"}},
		"name where an IP belongs":  {"{externalIP: a.b}", []string{p + ".externalIP", `"a.b"`, "IP address"}},
		"address with scheme":       {"{externalAddress: 'http://a'}", []string{p + ".externalAddress", `"http://a"`}},
		"address with port":         {"{httpServer: {address: 'a:80'}}", []string{p + ".httpServer.address", `"a:80"`}},
		"address with user":         {"{httpServer: {address: 'root@a'}}", []string{p + ".httpServer.address", `"root@a"`}},
		"address with line break":   {`{httpServer: {address: "a\nb"}}`, []string{p + ".httpServer.address"}},
		"address empty":             {"{httpServer: {address: ''}}", []string{p + ".httpServer.address", `""`}},
		"address with zone":         {"{externalIP: 'fe80::1%eth0'}", []string{p + ".externalIP", "%eth0"}},
		"path names another host":   {"{externalIP: 10.0.0.1, path: //evil/x}", []string{p + ".path", `"//evil/x"`}},
		"path with control byte":    {`{externalIP: 10.0.0.1, path: "/a\x01"}`, []string{p + ".path"}},
		"no name of a processor":    {"{path: /processor/}", []string{p + ".path", `"/processor/"`}},
		"more than a name":          {"{path: /processor/a/b}", []string{p + ".path", `"/processor/a/b"`}},
		"path without address":      {"{path: /healthz}", []string{p + ".path", `"/healthz"`, "externalAddress is not set"}},
		"nested, path and no host":  {"{httpServer: {path: /x, port: 80}}", []string{p + ".httpServer.path", `"/x"`, "address is not set"}},
		"nested, nothing":           {"{httpServer: {}}", []string{p + ".httpServer.path"}},
		"script empty":              {"{scriptRunner: {script: ''}}", []string{p + ".scriptRunner.script"}},
		"everything wrong at once":  {"{externalIP: x, externalPort: 0, scheme: ftp, timeoutSeconds: 0}", []string{"externalIP", "externalPort", "scheme", "timeoutSeconds"}},
		"scheme only, as defaulted": {"{scheme: http, timeoutSeconds: 30}", []string{p + ".path"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs := processorOf(t, tc.processor).Call(field.NewPath("spec", "processor"))
			text := Message(errs)
			if text == "" {
				t.Fatal("accepted")
			}
			for _, part := range tc.want {
				if !strings.Contains(text, part) {
					t.Errorf("message %q does not contain %q", text, part)
				}
			}
		})
	}
}

func TestScriptTooLong(t *testing.T) {
	t.Parallel()
	p := &Processor{ScriptRunner: &ScriptRunner{Script: strings.Repeat("x", MaxScriptBytes+1)}}
	_, errs := p.Call(field.NewPath("spec", "processor"))
	if text := Message(errs); !strings.Contains(text, "scriptRunner.script") || !strings.Contains(text, "65536") || len(text) > 200 {
		t.Errorf("message = %q", text)
	}
}

// FuzzCall holds Call to what the rest of the system relies on: a Call without errors can be made as it is.
func FuzzCall(f *testing.F) {
	for _, seed := range []string{
		`{"path":"/processor/podDetailCollector","scheme":"http","timeoutSeconds":60}`,
		`{"externalIP":"10.0.0.1","externalPort":8080,"path":"/x?a=b#c"}`,
		`{"externalAddress":"a.b","path":"//c/d","scheme":"https"}`,
		`{"httpServer":{"address":"fd00::1","port":70000,"path":"@/%zz"}}`,
		`{"scriptRunner":{"script":"x"},"timeoutSeconds":0}`,
		`{"function":{}}`, `{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var p Processor
		if json.Unmarshal(data, &p) != nil {
			return
		}
		call, errs := p.Call(field.NewPath("spec", "processor"))
		if len(errs) > 0 {
			if text := Message(errs); !strings.Contains(text, "spec.processor") || len(text) > (maxErrorBytes+10)*(maxMessageErrors+1) {
				t.Errorf("message %q", text)
			}
			return
		}
		if call.Timeout < time.Second || call.Timeout > time.Duration(MaxTimeoutSeconds)*time.Second {
			t.Errorf("timeout = %s", call.Timeout)
		}
		checkCall(t, call)
	})
}

func checkCall(t *testing.T, call Call) {
	t.Helper()
	switch call.Kind {
	case ProcessorHTTP:
		host, port, err := net.SplitHostPort(call.URL.Host)
		n, err2 := strconv.Atoi(port)
		if err != nil || err2 != nil || host == "" || n < 1 || n > 65535 || isHost(host) != "" {
			t.Errorf("host = %q", call.URL.Host)
		}
		if (call.URL.Scheme != "http" && call.URL.Scheme != "https") || call.URL.User != nil || call.URL.Opaque != "" {
			t.Errorf("URL = %q", call.URL)
		}
	case ProcessorBuiltIn:
		if call.BuiltIn == "" || strings.Contains(call.BuiltIn, "/") {
			t.Errorf("built-in = %q", call.BuiltIn)
		}
	case ProcessorScript:
		if call.Script == nil || call.Script.Script == "" || len(call.Script.Script) > MaxScriptBytes {
			t.Error("no script that can be run")
		}
	case ProcessorFunction:
	default:
		t.Errorf("kind = %q", call.Kind)
	}
}
