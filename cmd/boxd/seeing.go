// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/cmd/boxd/config"
	"github.com/boxd-dev/boxd/relay/metrics"
	"github.com/boxd-dev/boxd/relay/route"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/audit"
	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/leaks"
	"github.com/boxd-dev/boxd/supervisor/recent"
	"github.com/boxd-dev/boxd/systemd/journal"
)

// maxEvents is how many events are kept for readers; each is less than two KiB.
const maxEvents = 8192

// notes is where boxd notes what happens.
type notes struct {
	route.Notes
	log  *slog.Logger
	look func() metrics.Snapshot // set before anybody asks
}

// openNotes opens the log, and what keeps the last errors and events.
func openNotes(cfg *config.Config) *notes {
	n := &notes{Notes: route.Notes{Errors: recent.New()}}
	n.log = slog.New(n.Errors.Watch(journal.Open(cfg.Log, os.Stderr)))
	n.Metrics = metrics.New(version, func() metrics.Snapshot { return n.look() })
	n.Events = events.New(maxEvents, events.Logged(n.log), n.Metrics.Watch)
	return n
}

// openAudit opens the audit log, once nobody else can have it, and looks after it until ctx ends.
func (n *notes) openAudit(ctx context.Context, cfg *config.Config, beside *sync.WaitGroup) (err error) {
	n.Audit, err = audit.Open(cfg.Daemon.StateDir, cfg.Audit, n.log, func(failed bool, detail string) {
		what := events.AuditRecovered
		if failed {
			what = events.AuditFailed
		}
		n.Events.Add(context.WithoutCancel(ctx), events.Event{Type: what, Detail: detail})
	})
	if err == nil {
		beside.Go(func() { n.Audit.Run(ctx) })
	}
	return err
}

// known lists the keys of all boxes that somebody has.
func known(sup *supervisor.Supervisor, imgs *images.Store) func() map[string]bool {
	return func() map[string]bool {
		keys := sup.Keys()
		for _, key := range imgs.Keys() {
			keys[key] = true
		}
		return keys
	}
}

// begin notes that boxd serves, and makes metrics of its supervisor.
func (n *notes) begin(ctx context.Context, cfg *config.Config, sup *supervisor.Supervisor, imgs *images.Store, boxes *driver.Driver) {
	left := &leaks.Looker{List: boxes.List, Known: known(sup, imgs), Workspaces: sup.Workspaces, Groups: cfg.Groups.Path()}
	started := time.Now()
	n.look = func() metrics.Snapshot {
		o := sup.Overview()
		s := metrics.Snapshot{
			Started: started, Ready: sup.Ready() == nil, Degraded: len(o.Degraded), Sessions: map[metrics.Group]int{}, Most: o.MaxSessions,
			Processes: o.Processes, Running: o.Running, Leaks: left.Count(ctx),
		}
		for _, i := range sup.Sessions(supervisor.Principal{}, true) {
			s.Sessions[metrics.Group{State: string(i.State), Profile: i.Settings.Profile}]++
			if i.Frozen {
				s.Frozen++
			}
		}
		s.Waiting, s.Pool = &o.Waiting, map[string]metrics.Pool{}
		for _, p := range o.Warm {
			s.Pool[p.Profile] = metrics.Pool{Ready: p.Ready, Wanted: p.Want}
		}
		u := sup.UsedInAll()
		s.Used = metrics.Used{Sessions: u.Sessions, CPU: u.CPU, Memory: u.Memory * 3600, Disk: u.Disk * 3600}
		a := n.Audit.State()
		s.Audit = metrics.Audit{Written: a.Written, Failed: a.Failed, Lost: a.Lost, Waiting: a.Waiting, Broken: a.Trouble != nil}
		return s
	}
	n.Events.Add(ctx, events.Event{Type: events.DaemonStarted, Detail: fmt.Sprintf("version %s, socket %s, configuration: %s", version, cfg.Daemon.Socket, cfg.Describe())})
}
