// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestText(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----"
	for name, test := range map[string]struct{ text, want string }{
		"nothing":                     {"17 22 0:17 / /sys rw,nosuid shared:7 - sysfs sysfs rw", ""},
		"empty":                       {"", ""},
		"short names":                 {"DB_PASS=a PGPASS=b STRIPE_KEY=c X_PAT=d SNMP_COMMUNITY=e", "DB_PASS=[redacted] PGPASS=[redacted] STRIPE_KEY=[redacted] X_PAT=[redacted] SNMP_COMMUNITY=[redacted]"},
		"longer names":                {"SECRET_KEY_BASE=a TOKEN_VALUE=b", "SECRET_KEY_BASE=[redacted] TOKEN_VALUE=[redacted]"},
		"short name in JSON":          {`{"pass":"x"}`, `{"pass":"[redacted]"}`},
		"in a query":                  {"jdbc:x?user=a&pass=b&c=d", "jdbc:x?user=a&pass=[redacted]&c=d"},
		"flag apart":                  {"curl --pass x -u root:y", "curl --pass [redacted] -u root:[redacted]"},
		"known beginnings":            {"ghp_0123456789abcdef0123 AKIAIOSFODNN7EXAMPLE glpat-0123456789abcdef", "[redacted] [redacted] [redacted]"},
		"words":                       {"bypass: no key=3 monkey compass the akia", ""},
		"private key":                 {"a\n" + key + "\nb", "a\n-----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY-----\nb"},
		"two private keys":            {key + key, strings.Repeat("-----BEGIN RSA PRIVATE KEY-----[redacted]-----END RSA PRIVATE KEY-----", 2)},
		"private key, cut":            {"-----BEGIN PRIVATE KEY-----\nMIIEow", "-----BEGIN PRIVATE KEY-----[redacted]"},
		"certificate":                 {"-----BEGIN CERTIFICATE-----\nMIID\n-----END CERTIFICATE-----", ""},
		"bearer token":                {"Authorization: Bearer abcdefgh.ijklmnop-qrst", "Authorization: Bearer [redacted]"},
		"bearer token in a list":      {`-H "authorization: bearer 0123456789abcdef0123"`, `-H "authorization: bearer [redacted]"`},
		"basic authentication":        {"Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [redacted]"},
		"about bearer tokens":         {"no bearer token was sent", ""},
		"web token":                   {"jwt eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl end", "jwt [redacted] end"},
		"password in URL":             {"mongodb://user:s3cret@host:27017/db", "mongodb://user:[redacted]@host:27017/db"},
		"no password in URL":          {"https://host:443/path@x", ""},
		"command line":                {"mysqld --password=s3cret --user=x", "mysqld --password=[redacted] --user=x"},
		"mount options":               {"rw,username=u,password=p%#x,secret=AQB==,vers=3", "rw,username=u,password=[redacted],secret=[redacted],vers=3"},
		"query":                       {"/path?token=abc&x=1", "/path?token=[redacted]&x=1"},
		"variable":                    {"export DB_PASSWORD='s3 cret'", "export DB_PASSWORD='[redacted] cret'"},
		"JSON":                        {`{"dbPassword":"s3 cret","x":"y"}`, `{"dbPassword":"[redacted]","x":"y"}`},
		"JSON in a string":            {`"{\"token\":\"abc\"}"`, `"{\"token\":\"[redacted]\"}"`},
		"YAML":                        {"password: s3cret\nuser: x", "password: [redacted]\nuser: x"},
		"JSON with an escape":         {`{"password":"s3\"cret","x":"y"}`, `{"password":"[redacted]","x":"y"}`},
		"escape of an angle":          {`{"args":"--token=a\u003cb\u0026c d"}`, `{"args":"--token=[redacted] d"}`},
		"quoted":                      {`password="s3cret" x`, `password="[redacted]" x`},
		"key of YAML in quotes":       {`"password": s3cretive`, `"password": [redacted]`},
		"key that is cut off in JSON": {`{"a":"-----BEGIN PRIVATE KEY-----\nabc","b":"c"}`, `{"a":"-----BEGIN PRIVATE KEY-----[redacted]","b":"c"}`},
		"JSON after an equals sign":   {`{"token=":"","password=":[],"a":"secret="}`, ""},
		"JSON's numbers":              {`{"token": 123456789,"authorization":123456789}`, ""},
		"JSON's escapes":              {`{"a":"token=\nb","c":"authorization:\tabcdefghi"}`, ""},
		"JSON after a quote":          {`{"a":"token\":","b":"c","d":"token: ","e":[{"f":"token: "}]}`, ""},
		"names of secrets stay": {
			`{"secretName":"nginx-tls","automountServiceAccountToken":false,"secret":{"secretName":"a-token-2fplq"},"name":"token-2fplq"}`, "",
		},
		"messages about secrets stay": {`MountVolume.SetUp failed for volume "x" : secret "foo" not found`, ""},
		"paths stay":                  {"/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/token/..data/token", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := test.want
			if want == "" {
				want = test.text
			}
			if got := Text(test.text); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestLargeTextIsQuick(t *testing.T) {
	t.Parallel()
	line := "216 22 254:1 /var/lib/kubelet/pods/29da79e5/volume-subpaths/a/b/1 /x rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
	text := strings.Repeat(line, 10<<20/len(line))
	begin := time.Now()
	if Text(text) != text {
		t.Error("text without credentials was changed")
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("took %v", took)
	}
}

// TestJSONStaysValid puts names, quotes and escapes together in every order, as chance seldom does.
func TestJSONStaysValid(t *testing.T) {
	t.Parallel()
	parts := []string{
		"token", "password", "api_key", "secret", "authorization", "Bearer ", "-u ", "--pass ", "://", "-----BEGIN PRIVATE KEY-----",
		"-----END ", "=", ":", ": ", `"`, "'", `\`, "\n", "}", "]", ",", "<", "@", " ", "abcdefgh", "12345678",
	}
	random := rand.New(rand.NewPCG(1, 2))
	some := func() string {
		var text strings.Builder
		for range random.IntN(7) {
			text.WriteString(parts[random.IntN(len(parts))])
		}
		return text.String()
	}
	for range 20_000 {
		var value any = map[string]any{some(): some(), some(): []any{some(), 12345678, map[string]any{some(): true}}, some(): 1234567.5}
		for range random.IntN(3) {
			inner, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			value = []any{string(inner), some()}
		}
		text, err := json.MarshalIndent(value, "", " "[:random.IntN(2)])
		if err != nil {
			t.Fatal(err)
		}
		if got := Text(string(text)); !json.Valid([]byte(got)) {
			t.Fatalf("JSON is broken:\n%s\n%s", text, got)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add(`{"password":"x","token":"y"}`)
	f.Add(`-----BEGIN PRIVATE KEY-----x-----END PRIVATE KEY-----`)
	f.Add(`{"token=":"","a":"b\\","secret\":\"":[{"authorization":12345678}]}`)
	f.Add(`["\"password\": \"x\\\"","api_key: 'abcdefg'","--pass x","-u a:b"]`)
	f.Add(`https://u:p@h password=x authorization: bearer 0123456789abcdef0123`)
	f.Fuzz(func(t *testing.T, text string) {
		if got := Text(text); json.Valid([]byte(text)) && !json.Valid([]byte(got)) {
			t.Errorf("JSON is broken:\n%q\n%q", text, got)
		}
	})
}

func BenchmarkText(b *testing.B) {
	line := `{"name":"logrotateconf","mountPath":"/etc/logrotate.d/nginx.log","subPath":"nginx.log"},`
	text := strings.Repeat(line, 256<<10/len(line))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Text(text)
	}
}

// TestRulesAreValid compiles each expression, and finds its one group.
func TestRulesAreValid(t *testing.T) {
	t.Parallel()
	for _, r := range rules() {
		if n := r.pattern().NumSubexp(); n != 1 {
			t.Errorf("%s has %d groups", r.pattern(), n)
		}
	}
}
