// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package agent

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubediag.org/kubediag/internal/serve"
	"kubediag.org/kubediag/test/apitest"
)

// caller makes a ServiceAccount and returns a token of it, for the API server where no audience is named.
func caller(t *testing.T, set *kubernetes.Clientset, name, audience string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := set.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	token, err := set.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// permit lets a caller call processors, and get the pods of one namespace.
func permit(t *testing.T, set *kubernetes.Clientset, name, namespace string) {
	t.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: "default"}}
	_, err := set.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kubediag-processor-caller"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = set.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = set.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// TestProcessorsOverHTTPS calls the built-in processors as others do: with a token that the API server vouches for.
func TestProcessorsOverHTTPS(t *testing.T) {
	t.Parallel()
	env := install(t)
	set := apitest.Clientset(t, env.Config)
	n := newNode(t, "serving", env.Config)
	n.options.ServeProcessors = freeAddress(t)
	pod(t, env, "served", n.name)
	pod(t, env, "served-elsewhere", "elsewhere")
	mine := env.Namespace(t)
	audience := serve.Audience(n.name)
	allowed, stranger := caller(t, set, "allowed", audience), caller(t, set, "stranger", audience)
	permit(t, set, "elsewhere", "default")
	forServer, forOther := caller(t, set, "elsewhere", ""), caller(t, set, "another", serve.Audience("elsewhere"))
	permit(t, set, "allowed", "default")
	n.start(t)
	waitForTLS(t, n.options.ServeProcessors)

	about := func(namespace, name string) string {
		return fmt.Sprintf(`{"pod.namespace":%q,"pod.name":%q}`, namespace, name)
	}
	for name, tc := range map[string]struct {
		processor, token, body string
		code                   int
		want                   string
	}{
		"mounts":               {"mountInfoCollector", allowed, "{}", 200, `"collector.system.mountinfo":"`},
		"a pod":                {"podDetailCollector", allowed, about("default", "served"), 200, `"collector.kubernetes.pod.detail":"{\"kind\":\"Pod\"`},
		"a healthy pod":        {"subpathRemountDiagnoser", allowed, about("default", "served"), 422, ""},
		"a repair of nothing":  {"subpathRemountRecover", allowed, about("default", "served"), 422, ""},
		"a pod elsewhere":      {"subpathRemountRecover", allowed, about("default", "served-elsewhere"), 500, "served-elsewhere"},
		"a pod of a stranger":  {"podDetailCollector", allowed, about(mine, "served"), 403, "may not get pod " + mine + "/served"},
		"no token":             {"mountInfoCollector", "", "{}", 401, ""},
		"a token for the API":  {"mountInfoCollector", forServer, "{}", 401, ""},
		"a token for another":  {"mountInfoCollector", forOther, "{}", 401, ""},
		"a forged token":       {"mountInfoCollector", "eyJhbGciOiJub25lIn0.e30.", "{}", 401, ""},
		"a token without role": {"mountInfoCollector", stranger, "{}", 403, "may not post to /processor/mountInfoCollector"},
		"no such processor":    {"commandExecutor", allowed, "{}", 404, ""},
		"no object":            {"mountInfoCollector", allowed, "[]", 400, "JSON object of strings"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := call(t, n.options.ServeProcessors, tc.processor, tc.token, tc.body)
			if code != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("%d %.300s, want %d %s", code, body, tc.code, tc.want)
			}
		})
	}
	t.Run("a right that is taken away", func(t *testing.T) {
		if err := set.RbacV1().ClusterRoleBindings().Delete(t.Context(), "allowed", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		apitest.Eventually(t, func() error {
			if code, _ := call(t, n.options.ServeProcessors, "mountInfoCollector", allowed, "{}"); code != http.StatusForbidden {
				return fmt.Errorf("status %d", code)
			}
			return nil
		})
	})
}

var insecure = &http.Client{
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	Timeout:   30 * time.Second,
}

func call(t *testing.T, address, processor, token, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/processor/"+processor, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := insecure.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

func waitForTLS(t *testing.T, address string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}
