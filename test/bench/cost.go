// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// bounds is a policy that counts everything that can be counted, with limits that are never reached.
const bounds = `[policy.default]
sessions = 100
processes = 1000
executions = 1000
executions_per_day = 100000000
executions_per_minute = 10000000
total_memory = "100GiB"
total_cpus = 1000.0
[policy.default.ceilings]
cpus = 64.0
memory = "64GiB"
pids = 4096
timeout = "1h"
max_lifetime = "48h"
ttl = "24h"
`

// costCases measure what policy and audit add to an execution: that of a user with a limit for everything and an audit record of
// the call, against that of root, who has no policy, on a boxd without records. No setting turns those off, so a boxd with one
// changed line is built for it, in the directory without.
func (b *bench) costCases(ctx context.Context, without string) error {
	whole := b.bin
	for _, d := range []struct{ name, bin string }{{"p", whole}, {"q", without}} {
		b.bin = d.bin
		_, err := b.startDaemon(ctx, d.name, 1, bounds)
		b.bin = whole
		if err != nil {
			return err
		}
		if _, err := b.open(d.name); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		daemon string
		uid    uint32
		name   string
	}{
		{"q", 0, "boxd: exec, neither policy nor audit"},
		{"q", quietUID, "boxd: exec, policy, no audit"},
		{"p", 0, "boxd: exec, audit, no policy"},
		{"p", quietUID, "boxd: exec, policy and audit"},
	} {
		bare, err := bareClientOf(filepath.Join(b.dir, c.daemon, "s"), c.uid)
		if err == nil {
			err = bare.expect("/v1/sessions", `{"id":"cost","ttl":"1h"}`, `"state":"ready"`)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if recorded, err := b.hasRecords(c.daemon); err != nil || recorded != (c.daemon == "p") {
			return errors.Join(err, fmt.Errorf("%s: there are records: %t", c.name, recorded))
		}
		b.add(c.name, timed(func() error { return bare.exec("cost") }))
	}
	return nil
}

// withoutRecords builds a boxd without audit records of calls, and returns the directory of its programs.
func (b *bench) withoutRecords(ctx context.Context) (dir string, err error) {
	text, err := sourceWithoutRecords(".")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(b.dir, "without")
	return dir, build(ctx, ".", dir, map[string][]byte{recordSource: text})
}

// recordSource is the file that decides which calls have records.
const recordSource = "relay/accesslog.go"

// sourceWithoutRecords returns that file of a tree, changed so that none has.
func sourceWithoutRecords(tree string) ([]byte, error) {
	const line, instead = "if t.mutates && c.Audit != nil {", "if t.mutates = false; t.mutates {"
	text, err := os.ReadFile(filepath.Join(tree, recordSource))
	if err != nil {
		return nil, err
	}
	if bytes.Count(text, []byte(line)) != 1 {
		return nil, fmt.Errorf("%s: the place to remove is not in this version of the file", recordSource)
	}
	return bytes.Replace(text, []byte(line), []byte(instead), 1), nil
}

// hasRecords reports whether a daemon's audit log has records of session creation.
func (b *bench) hasRecords(daemon string) (bool, error) {
	files, err := filepath.Glob(filepath.Join(b.dir, daemon, "state", "audit", "*"))
	if err != nil || len(files) == 0 {
		return false, err
	}
	text, err := os.ReadFile(files[0])
	return bytes.Contains(text, []byte("POST /v1/sessions")), err
}
