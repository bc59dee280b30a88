// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/boxd-dev/boxd/cmd/boxd/config"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/recent"
	"github.com/boxd-dev/boxd/systemd/journal"
)

// maxEvents is how many events are kept for readers; each is less than two KiB.
const maxEvents = 8192

// notes is where boxd notes what happens.
type notes struct {
	log    *slog.Logger
	errors *recent.List
	events *events.Log
}

// openNotes opens the log, and what keeps the last errors and events.
func openNotes(cfg *config.Config) *notes {
	n := &notes{errors: recent.New()}
	n.log = slog.New(n.errors.Watch(journal.Open(cfg.Log, os.Stderr)))
	n.events = events.New(maxEvents, events.Logged(n.log))
	return n
}
