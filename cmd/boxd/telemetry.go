// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/trace"
	"github.com/boxd-dev/boxd/relay"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/images"

	"github.com/boxd-dev/boxd/systemd"
)

// maxEvents is how many events are stored for readers; each is less than two KiB.
const maxEvents = 8192

// notes are boxd's log and telemetry.
type notes struct {
	relay.Telemetry
	log      *slog.Logger
	snapshot func() relay.MetricsSnapshot // set before the first scrape
}

// openNotes opens the log, and the stores of the latest errors and events.
func openNotes(cfg *Config) (*notes, error) {
	n := &notes{Telemetry: relay.Telemetry{Errors: events.NewRecent()}}
	n.log = slog.New(n.Errors.Watch(systemd.Open(cfg.Log, os.Stderr)))
	n.Metrics = relay.NewMetrics(version, func() relay.MetricsSnapshot { return n.snapshot() })
	var err error
	if n.Traces, err = trace.NewTracer(&cfg.Traces, trace.Source{Service: "boxd", Version: version, Instance: cfg.Fleet.NodeName()}, n.log); err != nil {
		return nil, err
	}
	watchers := []func(context.Context, *events.Event){events.Logged(n.log), n.Metrics.Watch}
	if n.Traces != nil {
		watchers = append(watchers, relay.ProgramSpans(n.Traces))
	}
	n.Events = events.New(maxEvents, watchers...)
	return n, nil
}

// openRecords opens the audit log, once no other boxd can have it. Until ctx ends the log is maintained, and spans are sent.
func (n *notes) openRecords(ctx context.Context, cfg *Config, background *sync.WaitGroup) (err error) {
	n.Audit, err = audit.Open(cfg.Daemon.StateDir, cfg.Audit, n.log, func(failed bool, detail string) {
		what := events.AuditRecovered
		if failed {
			what = events.AuditFailed
		}
		n.Events.Add(context.WithoutCancel(ctx), events.Event{Type: what, Detail: detail})
	})
	if err != nil {
		return err
	}
	background.Go(func() { n.Audit.Run(ctx) })
	if n.Traces != nil {
		background.Go(func() { n.Traces.Run(ctx) })
	}
	return nil
}

// known returns the keys of all boxes in use.
func known(sup *supervisor.Supervisor, imgs *images.Store) func() map[string]bool {
	return func() map[string]bool {
		keys := sup.Keys()
		for _, key := range imgs.Keys() {
			keys[key] = true
		}
		return keys
	}
}

// begin records that boxd serves, and makes metrics of its supervisor.
func (n *notes) begin(ctx context.Context, cfg *Config, sup *supervisor.Supervisor, imgs *images.Store, boxes *driver.Driver) {
	leaks := &supervisor.LeakCheck{List: boxes.List, Known: known(sup, imgs), Workspaces: sup.Workspaces, Groups: cfg.Groups.Path()}
	started := time.Now()
	n.snapshot = func() relay.MetricsSnapshot {
		o := sup.Overview()
		s := relay.MetricsSnapshot{
			Started: started, Ready: sup.Ready() == nil, Degraded: len(o.Degraded), Sessions: map[relay.MetricsGroup]int{}, Most: o.MaxSessions,
			Processes: o.Processes, Running: o.Running, Leaks: leaks.Count(ctx),
		}
		for _, i := range sup.Sessions(access.Principal{}, true) {
			s.Sessions[relay.MetricsGroup{State: string(i.State), Profile: i.Settings.Profile}]++
			if i.Frozen {
				s.Frozen++
			}
		}
		s.Waiting, s.Pool = &o.Waiting, map[string]relay.MetricsPool{}
		for _, p := range o.Warm {
			s.Pool[p.Profile] = relay.MetricsPool{Ready: p.Ready, Wanted: p.Want}
		}
		u := sup.UsedInAll()
		s.Used = relay.MetricsUsed{Sessions: u.Sessions, CPU: u.CPU, Memory: u.Memory * 3600, Disk: u.Disk * 3600}
		s.Spans = n.Traces.Counts()
		a := n.Audit.State()
		s.Audit = relay.MetricsAudit{Written: a.Written, Failed: a.Failed, Lost: a.Lost, Waiting: a.Waiting, Broken: a.Trouble != nil}
		return s
	}
	n.Events.Add(ctx, events.Event{Type: events.DaemonStarted, Detail: fmt.Sprintf("version %s, socket %s, configuration: %s", version, cfg.Daemon.Socket, cfg.Describe())})
}
