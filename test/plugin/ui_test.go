// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"bufio"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/apitest"
	"kubediag.org/kubediag/test/fakenode"
)

// reader is a user before the pages.
type reader struct {
	http   http.Client
	origin string
	server *background
}

// openPages starts the server of pages, and opens the address that it prints.
func (p *plugin) openPages(t *testing.T, args ...string) *reader {
	t.Helper()
	r := &reader{server: p.start(t, append([]string{"ui", "--no-browser", "--lang=en", home}, args...)...)}
	opened := regexp.MustCompile(`(?m)^Open (http://\S+)$`)
	r.server.await(t, opened.String())
	t.Cleanup(func() { r.server.interrupt(t) })
	address := opened.FindStringSubmatch(r.server.Text())[1]
	at, err := url.Parse(address)
	if err == nil {
		r.http.Jar, err = cookiejar.New(nil)
	}
	must(t, err)
	r.origin = at.Scheme + "://" + at.Host
	r.request(t, http.MethodGet, strings.TrimPrefix(address, r.origin), nil)
	return r
}

// request returns the page that a request ends at, and its address.
func (r *reader) request(t *testing.T, method, target string, form url.Values) (page, at string) {
	t.Helper()
	asked, err := http.NewRequestWithContext(t.Context(), method, r.origin+target, strings.NewReader(form.Encode()))
	must(t, err)
	if form != nil {
		asked.Header.Set("Origin", r.origin)
		asked.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	answer, err := r.http.Do(asked)
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	return html.UnescapeString(string(text)), answer.Request.URL.Path
}

// await waits until a page matches, and returns it.
func (r *reader) await(t *testing.T, target, pattern string) (page string) {
	t.Helper()
	apitest.Eventually(t, func() error {
		if page, _ = r.request(t, http.MethodGet, target, nil); !regexp.MustCompile(pattern).MatchString(page) {
			return errors.New(pattern + " is not in " + target + ":\n" + page)
		}
		return nil
	})
	return page
}

// press sends the form of a page whose action begins with a text, and returns the address that it leads to.
func (r *reader) press(t *testing.T, page, action string) (at string) {
	t.Helper()
	form := regexp.MustCompile(`(?s)<form method="post" action="(` + action + `[^"]*)">(.*?)</form>`).FindStringSubmatch(page)
	if form == nil {
		t.Fatalf("no form %s:\n%s", action, page)
	}
	fields := url.Values{}
	for _, field := range regexp.MustCompile(`name="(\w+)" value="([^"]*)"`).FindAllStringSubmatch(form[2], -1) {
		fields.Set(field[1], field[2])
	}
	_, at = r.request(t, http.MethodPost, form[1], fields)
	return at
}

// TestPagesOfARealFault: while a page is open, a real fault comes and is on it soon; a click makes its plan, another has the agent repair it,
// and the page is clean again.
func TestPagesOfARealFault(t *testing.T) {
	p := install(t)
	p.forgetAgent(t)
	p.Bind(t)
	p.LaunchAgent(t, "Observe")
	r := p.openPages(t)
	r.await(t, "/", `No fault is known in all namespaces`)
	changes := make(chan time.Time, 1000)
	go r.listen(t, changes)
	if _, ok := <-changes; !ok {
		t.Fatal("the pages report no changes")
	}
	began := time.Now()
	p.Break(t, 1)
	page := r.await(t, "/", `StaleSubPath`)
	expect(t, page, `1 fault in all namespaces`, `href="/fault/default/core2-\w+"`)
	for at := range changes { // the first is the version of now
		if at.After(began) {
			break
		}
	}
	planned := r.press(t, r.await(t, "/pod/default/core2", `subPath bind: broken here`), "/plan/")
	repaired := r.press(t, r.await(t, planned, `action="/repair/`), "/repair/")
	if planned == repaired || !strings.HasPrefix(repaired, "/diagnosis/default/core2-") {
		t.Fatalf("the plan is at %s, its repair at %s", planned, repaired)
	}
	expect(t, r.await(t, repaired, `pod default/core2: Healed Repaired StaleSubPath`), `StaleSubPath: proven healed by another look`)
	r.await(t, "/", `No fault is known in all namespaces`)
}

// listen sends the time of each version of the state that the server reports, the first when it is connected.
func (r *reader) listen(t *testing.T, changes chan<- time.Time) {
	defer close(changes)
	asked, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.origin+"/events", nil)
	if err != nil {
		t.Error(err)
		return
	}
	answer, err := r.http.Do(asked)
	if err != nil {
		t.Error(err)
		return
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			changes <- time.Now()
		}
	}
}

// TestPagesOfManyFaults: more faults than one page of a list are counted from the watch of a real API server; a user who may read one
// namespace sees its fault and no other; and a fault that goes is gone from the page.
func TestPagesOfManyFaults(t *testing.T) {
	p, c := &plugin{Node: fakenode.New(t)}, clientOfAll(t) // without a manager and an agent, which would delete them
	p.Build(t, "kubectl-kubediag", "")
	p.path = p.Program("kubectl-kubediag")
	bank := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bank-"}}
	p.create(t, c, bank)
	faultIn := func(namespace, code string, i int) *v1.MountFault {
		return &v1.MountFault{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("fault-", i)}, Status: v1.MountFaultStatus{
			Code: code, Node: fakenode.NodeName, Impact: v1.ImpactNow, Heal: v1.HealPerson, Since: metav1.Now(), LastSeen: metav1.Now(), Target: fmt.Sprint("vault-", i),
		}}
	}
	const many = 600 // a page of a list has 500
	for i := range many {
		p.create(t, c, faultIn(bank.Name, "HungMount", i))
	}
	own := faultIn("default", "StaleSubPath", 0)
	p.create(t, c, own)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "reads-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"mountfaults", "diagnoses"}, Verbs: []string{"get", "list", "watch"}},
	}}
	p.create(t, c, role)
	p.grant(t, c, "dev", "ClusterRole", role.Name)

	all := p.openPages(t)
	all.await(t, "/", `\b601 faults in all namespaces`)
	apitest.Eventually(t, func() error { _, err := p.command(t.Context(), "get", "--as=dev").Output(); return err })
	dev := p.openPages(t, "--as=dev", "--namespace=default")
	page := dev.await(t, "/", `1 fault in namespace default`)
	expect(t, page, `StaleSubPath`, `you may not list recoverypolicies`)
	for _, target := range []string{"/", "/nodes", "/node/" + fakenode.NodeName, "/pod/" + bank.Name + "/vault-1", "/fault/" + bank.Name + "/fault-1"} {
		if page, _ := dev.request(t, http.MethodGet, target, nil); strings.Contains(page, "HungMount") {
			t.Errorf("%s shows faults of another namespace:\n%s", target, page)
		}
	}
	must(t, c.Delete(t.Context(), own))
	dev.await(t, "/", `No fault is known in namespace default`)
	all.await(t, "/", `\b600 faults in all namespaces`)
}
