// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"
)

func TestSinceIsATimeOrHowLongAgo(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("here", 3600)
	now := time.Date(2026, 11, 21, 9, 30, 0, 0, zone)
	for text, want := range map[string]time.Time{
		"10m":                       now.Add(-10 * time.Minute),
		"1h30m":                     now.Add(-90 * time.Minute),
		"0s":                        now,
		"2026-11-20":                time.Date(2026, 11, 20, 0, 0, 0, 0, zone),
		"2026-11-20 08:15":          time.Date(2026, 11, 20, 8, 15, 0, 0, zone),
		"2026-11-20 08:15:30":       time.Date(2026, 11, 20, 8, 15, 30, 0, zone),
		"2026-11-20T08:15:30":       time.Date(2026, 11, 20, 8, 15, 30, 0, zone),
		"2026-11-20T08:15:30Z":      time.Date(2026, 11, 20, 8, 15, 30, 0, time.UTC),
		"2026-11-20T08:15:30.5Z":    time.Date(2026, 11, 20, 8, 15, 30, 5e8, time.UTC), // as printed by logs --timestamps
		"2026-11-20T08:15:30-02:00": time.Date(2026, 11, 20, 10, 15, 30, 0, time.UTC),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"-10m", "yesterday", "2026-13-01", "09:30", "0001-01-01T00:00:00Z", " "} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

func TestTheShellIsTheUsersOwn(t *testing.T) {
	t.Parallel()
	for shell, want := range map[string]string{"/usr/bin/zsh": "zsh", "fish": "fish", "": "bash", "/usr/sbin/nologin": "bash", "/bin/false": "bash", "/opt/x/sh": "sh"} {
		if got := userShell(shell); got != want {
			t.Errorf("of %q it is %q, want got == %q", shell, got, want)
		}
	}
	if argv := shellArgv("zsh"); !slices.Equal(argv[3:], []string{"sh", "zsh", "bash"}) || argv[0] != "/bin/sh" {
		t.Errorf(`argv = %q, want argv[3:] == []string{"sh", "zsh", "bash"} and argv[0] == "/bin/sh"`, argv)
	}
}
