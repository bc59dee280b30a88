// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/supervisor/access"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/events"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

func TestKeysThatNeedARestartAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"nothing", func(*Config) {}, nil},
		{"what new sessions get", func(c *Config) {
			c.Sessions.Max, c.Limits.BestEffort, c.Env = 3, []string{"io"}, map[string]string{"A": "b"}
			c.Profiles = map[string]policy.Profile{"default": {}}
		}, nil},
		{"who may come in", func(c *Config) {
			c.Access.DefaultRole, c.Principals = access.Viewer, map[string]access.Rule{"x": {Role: access.Admin}}
		}, nil},
		{"another way in", func(c *Config) { c.Daemon.HTTP, c.Daemon.HTTPInsecure = "[::1]:1", true }, []string{"daemon.http", "daemon.http_insecure"}},
		{"the socket", func(c *Config) { c.Daemon.Socket = "/x" }, []string{"daemon.socket"}},
		{"the keeper's", func(c *Config) {
			c.IDs.Count, c.Mounts.Allow, c.Image.Etc, c.Work.StoreSize = 9, nil, []string{"x"}, 0
		}, []string{"ids.count", "image.etc", "mounts.allow", "workspaces.store_size"}},
		{"the owner of a mount", func(c *Config) { c.Mounts.Allow = []Rule{{Path: "{home}", Owner: "1:1"}} }, []string{"mounts.allow"}},
		{"groups and times", func(c *Config) {
			c.Groups.Driver, c.Daemon.IdleExit = driverSystemd, quantity.Duration(time.Minute)
		}, []string{"cgroups.driver", "daemon.idle_exit"}},
	} {
		before, after := defaultConfig(), defaultConfig()
		tc.change(&after)
		for range 2 { // there and back
			if got, err := fixedSettings(&before, &after); err != nil || !cmp.Equal(got, tc.want) {
				t.Errorf("%s: got %q, err = %v, want no error and got == %q", tc.name, got, err, tc.want)
			}
			before, after = after, before
		}
	}
}

func TestAReloadIsAllOrNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "box.toml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	started, err := loadConfig(path, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	log, text := quiet()
	most, refuses := 0, error(nil)
	load := func() (Config, error) { return loadConfig(path, true, nil) }
	apply := func(c *Config) error {
		if refuses == nil {
			most = c.Sessions.Max
		}
		return refuses
	}
	r := newReloader(load, apply, &started, log, events.New(8, events.Logged(log)))
	for _, tc := range []struct {
		file    string
		most    int
		message string
	}{
		{"[sessions]\nmax = 7\n", 7, "read again, for new sessions"},
		{"[sessions]\nmax = 0\n", 7, "stays in force"},
		{"[sessions]\nmaxi = 9\n[daemon]\nsocket = \"/x\"\n", 7, "line 2: unknown key"},
		{"[sessions]\nmax = 8\n[daemon]\nsocket = \"/x\"\n", 8, "when boxd is restarted\" keys=daemon.socket "},
	} {
		text.Reset()
		write(tc.file)
		r.reload(t.Context())
		if most != tc.most || !strings.Contains(text.String(), tc.message) {
			t.Errorf("%q: sessions.max is %d, and the log says %s, want most == %v and text.String() containing %q",
				tc.file, most, text, tc.most, tc.message)
		}
		settings, err := r.settings()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []api.Setting{
			{Key: "sessions.max", Value: strconv.Itoa(tc.most), Origin: path + ":2"},
			{Key: "daemon.socket", Value: `"/run/boxd/boxd.sock"`, Origin: api.OriginBuiltIn}, // until it is restarted
		} {
			if !slices.Contains(settings, want) {
				t.Errorf("%q: not in force: want = %+v, want settings containing want", tc.file, want)
			}
		}
	}
	text.Reset()
	refuses = errors.New("as told")
	if r.reload(t.Context()); strings.Contains(text.String(), "read again") || !strings.Contains(text.String(), "as told") {
		t.Errorf(`a configuration that the supervisor refused is in force: text = %s, want text.String() without "read again" and text.String() containing "as told"`,
			text)
	}
}

func TestEverySIGHUPReloadsTheConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, _ := quiet()
		loads := 0
		r := &reloader{
			load:    func() (Config, error) { loads++; return Config{}, errors.New("as told") },
			started: &Config{}, log: log,
		}
		told := make(chan os.Signal, 1)
		ctx, end := context.WithCancel(t.Context())
		go r.run(ctx, told)
		for want := range 3 {
			synctest.Wait()
			if loads != want {
				t.Errorf("after %d hangups it has loaded %d times", want, loads)
			}
			told <- syscall.SIGHUP
		}
		end()
		synctest.Wait()
	})
}
