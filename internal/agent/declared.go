// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"kubediag.org/kubediag/internal/metric"
)

// The metrics of the agent.
var (
	agentInfo = metric.Declaration{
		Name: "kubediag_agent_info", Kind: metric.Gauge, Labels: []metric.Label{{Name: "node"}},
		Help: "Always 1. It gives the agent's node, for joins.",
		More: "The alerts join by it, so they name the node with any labels of the scrape job",
	}
	faultsPresent = metric.Declaration{
		Name: "kubediag_faults", Kind: metric.Gauge, Labels: []metric.Label{{Name: "code"}},
		Help: "Faults that the sentinel sees on the node now, by code.",
		More: "A fault that cannot be judged any more stays counted",
	}
	faultsByImpact = metric.Declaration{
		Name: "kubediag_faults_by_impact", Kind: metric.Gauge,
		Labels: []metric.Label{{Name: "code"}, {Name: "impact", Values: "`Now`, `Terminating`, `NextStart`, `Detach`, `Cleanup`"}},
		Help:   "Faults that the sentinel sees on the node now, by code and by how they hurt.",
		More:   "[The impacts](mountfault.md)",
	}
	faultDetection = metric.Declaration{
		Name: "kubediag_fault_detection_seconds", Kind: metric.Histogram, Labels: []metric.Label{{Name: "code"}},
		Help:    "Time from the cause of a fault, by the kernel's clock, until the sentinel saw it.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .5, 1, 5, 60, 3600},
	}
	repairsTotal = metric.Declaration{
		Name: "kubediag_repairs_total", Kind: metric.Counter,
		Labels: []metric.Label{{Name: "fault"}, {Name: "action"}, {Name: "outcome", Values: "`Done`, `Failed`"}},
		Help:   "Actions of repairs, by the sentinel and by Diagnoses.",
		More: "[List of actions](diagnosis.md#operations). All possible series start at 0. An action that found nothing left to do, or waits " +
			"for a budget, does not count",
	}
	sentinelWatching = metric.Declaration{
		Name: "kubediag_sentinel_watching", Kind: metric.Gauge,
		Help: "1 while the sentinel sees the kubelet's mounts and volumes, 0 otherwise.",
		More: "It is 0, too, if one of its watches has reported nothing for two minutes. The log names the watch and the time",
	}
	sentinelBinds = metric.Declaration{
		Name: "kubediag_sentinel_binds", Kind: metric.Gauge, Help: "Binds of subPaths on the node.",
	}
	sentinelUnwatchedBinds = metric.Declaration{
		Name: "kubediag_sentinel_unwatched_binds", Kind: metric.Gauge,
		Help: "Binds of subPaths that the kernel does not report on. The sentinel polls them every second.",
		More: "On FUSE and network file systems, and for static pods, this is normal. If there are more, check " +
			"`fs.inotify.max_user_watches`: the sentinel uses half of it, which namespaces and their pods share",
	}
	sentinelConnections = metric.Declaration{
		Name: "kubediag_sentinel_connections", Kind: metric.Gauge, Help: "FUSE connections of the node's volumes.",
	}
	partsNotJudged = metric.Declaration{
		Name: "kubediag_not_judged", Kind: metric.Gauge,
		Help: "Mounts and parts of the node that the agent could not judge; -1 if it could not look at all.",
		More: "It makes all searches of `scan` [every five minutes](sentinel.md#what-could-not-be-judged). The log has the reasons",
	}
	operationsTotal = metric.Declaration{
		Name: "kubediag_operations_total", Kind: metric.Counter,
		Labels: []metric.Label{{Name: "processor", Values: "the name of a built-in one, `HTTP` or `Script`"}, {Name: "outcome"}},
		Help:   "Finished operations of Diagnoses, by their final phase.",
	}
	operationDuration = metric.Declaration{
		Name: "kubediag_operation_duration_seconds", Kind: metric.Histogram, Labels: []metric.Label{{Name: "processor"}},
		Help:    "Time from the first attempt of an operation to the end of the last.",
		Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 15, 60, 300, 1800},
	}
	diagnosesTotal = metric.Declaration{
		Name: "kubediag_diagnoses_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "outcome"}},
		Help: "Finished Diagnoses on this node.",
	}
	diagnosesRunning = metric.Declaration{
		Name: "kubediag_diagnoses_running", Kind: metric.Gauge, Help: "Diagnoses that run now.",
	}
	abandonedGoroutines = metric.Declaration{
		Name: "kubediag_abandoned_goroutines", Kind: metric.Gauge,
		Help: "Processors that did not return in time and still run.", More: "Namespaces share 32 places for them",
	}
)

// Metrics declares the metrics of the agent, without the metrics of the libraries.
func Metrics() []metric.Declaration {
	return []metric.Declaration{
		agentInfo, faultsPresent, faultsByImpact, faultDetection, repairsTotal, sentinelWatching, sentinelBinds, sentinelUnwatchedBinds,
		sentinelConnections, partsNotJudged, operationsTotal, operationDuration, diagnosesTotal, diagnosesRunning, abandonedGoroutines,
	}
}
