// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/version"
)

// sarifFormat has lint write SARIF 2.1.0, which code scanning of GitHub and others reads.
const sarifFormat verb.Format = "sarif"

// The parts of SARIF that lint writes, see docs.oasis-open.org/sarif/sarif/v2.1.0.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        map[string]sarifDriver `json:"tool"`
		Results     []sarifResult          `json:"results"`
		Invocations []sarifInvocation      `json:"invocations"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
			Region struct {
				StartLine int `json:"startLine"`
			} `json:"region"`
		} `json:"physicalLocation"`
	}
	// sarifInvocation has the errors of reading.
	sarifInvocation struct {
		Successful    bool                `json:"executionSuccessful"`
		Notifications []sarifNotification `json:"toolExecutionNotifications"`
	}
	sarifNotification struct {
		Level   string    `json:"level"`
		Message sarifText `json:"message"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
)

// sarif is the report for programs that read SARIF. Names of files are relative, as lint has them.
func (r *lintReport) sarif() sarifLog {
	driver := sarifDriver{Name: "kubediag lint", Version: version.String(), Rules: []sarifRule{}}
	run := sarifRun{Results: []sarifResult{}}
	for _, f := range r.Findings {
		if !slices.ContainsFunc(driver.Rules, func(known sarifRule) bool { return known.ID == string(f.Rule) }) {
			text := "A container can get a mount that fails, or that does not follow its source"
			if f.Finding.Code != "" {
				text = fmt.Sprintf("A pod can get the fault %s: %s", f.Finding.Code, fault.Known().Entry(f.Finding.Code).Title)
			}
			driver.Rules = append(driver.Rules, sarifRule{string(f.Finding.Rule), sarifText{text}})
		}
		var at sarifLocation
		at.Physical.Artifact.URI = (&url.URL{Path: filepath.ToSlash(f.File)}).String()
		at.Physical.Region.StartLine = f.Line
		run.Results = append(run.Results, sarifResult{
			RuleID: string(f.Rule), Level: "warning", Locations: []sarifLocation{at},
			Message: sarifText{fmt.Sprintf("%s: %s. Cure: %s.", objectName(f), f.Summary, f.Cure)},
		})
	}
	invocation := sarifInvocation{Successful: r.failed == nil, Notifications: []sarifNotification{}}
	for _, text := range r.Errors {
		invocation.Notifications = append(invocation.Notifications, sarifNotification{"error", sarifText{text}})
	}
	run.Tool, run.Invocations = map[string]sarifDriver{"driver": driver}, []sarifInvocation{invocation}
	return sarifLog{"https://json.schemastore.org/sarif-2.1.0.json", "2.1.0", []sarifRun{run}}
}
