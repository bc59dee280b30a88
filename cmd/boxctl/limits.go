// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/internal/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// limitFlags are the flags of run, create and set: what a living session can be given too.
type limitFlags struct {
	memory, memoryHigh, swap, oom string
	ioRead, ioWrite, quota        string
	bandwidth                     string
	connections                   int
	ttl, maxLifetime              string
	cpus                          float64
	pids, cpuWeight, ioWeight     int
	inodes                        int
	labels                        []string
	set                           *pflag.FlagSet
}

func (f *limitFlags) add(cmd *cobra.Command) {
	f.set = cmd.Flags()
	f.set.StringVarP(&f.memory, "memory", "m", "", "`SIZE` of the memory, such as 512MiB")
	f.set.StringVar(&f.memoryHigh, "memory-high", "", "`SIZE` of the memory from which on programs are slowed down")
	f.set.StringVar(&f.swap, "swap", "", "`SIZE` of the swap beside the memory")
	f.set.StringVar(&f.oom, "oom", "", "`WHAT` dies when the memory is used up: process, program or session")
	f.set.Float64Var(&f.cpus, "cpus", 0, "`NUMBER` of processors, such as 1.5")
	f.set.IntVar(&f.cpuWeight, "cpu-weight", 0, "`WEIGHT` against other boxes for processor time, 1 to 10000")
	f.set.IntVar(&f.pids, "pids", 0, "`NUMBER` of processes and threads")
	f.set.IntVar(&f.ioWeight, "io-weight", 0, "`WEIGHT` against other boxes for the disk, 1 to 10000")
	f.set.StringVar(&f.ioRead, "io-read", "", "`SIZE` that may be read from the disk per second, such as 10MiB")
	f.set.StringVar(&f.ioWrite, "io-write", "", "`SIZE` that may be written to the disk per second")
	f.set.IntVar(&f.connections, "network-connections", 0, "`NUMBER` of connections at a time, at most the profile's")
	f.set.StringVar(&f.bandwidth, "network-bandwidth", "", "`SIZE` that may be sent, and as much received, per second, such as 1MiB")
	f.set.StringVar(&f.quota, "workspace-quota", "", "`SIZE` of the workspace")
	f.set.IntVar(&f.inodes, "workspace-inodes", 0, "`NUMBER` of files and directories in the workspace")
	f.set.StringVar(&f.ttl, "ttl", "", "end after this `TIME` without use, such as 10m")
	f.set.StringVar(&f.maxLifetime, "max-lifetime", "", "end after this `TIME` in any case")
	f.set.StringArrayVar(&f.labels, "label", nil, "`NAME=value` that goes with it; may be repeated")
}

// change makes a request of the flags that were given.
func (f *limitFlags) change() (c api.SessionChange, errs []error) {
	given := f.set.Changed
	for _, number := range []struct {
		name string
		from *int
		to   **int
	}{{"pids", &f.pids, &c.Pids}, {"cpu-weight", &f.cpuWeight, &c.CPUWeight}, {"io-weight", &f.ioWeight, &c.IOWeight}, {"workspace-inodes", &f.inodes, &c.WorkspaceInodes}, {"network-connections", &f.connections, &c.NetworkConnections}} {
		if given(number.name) {
			*number.to = number.from
		}
	}
	if given("cpus") {
		c.CPUs = &f.cpus
	}
	if given("oom") {
		c.OOM = &f.oom
	}
	for _, size := range []struct {
		name, text string
		to         **quantity.Size
	}{
		{"memory", f.memory, &c.Memory},
		{"memory-high", f.memoryHigh, &c.MemoryHigh},
		{"swap", f.swap, &c.Swap},
		{"io-read", f.ioRead, &c.IORead},
		{"io-write", f.ioWrite, &c.IOWrite},
		{"workspace-quota", f.quota, &c.WorkspaceQuota},
		{"network-bandwidth", f.bandwidth, &c.NetworkBandwidth},
	} {
		*size.to = parseFlag(&errs, f.set, size.name, size.text, quantity.ParseSize)
	}
	c.TTL = parseFlag(&errs, f.set, "ttl", f.ttl, quantity.ParseDuration)
	c.MaxLifetime = parseFlag(&errs, f.set, "max-lifetime", f.maxLifetime, quantity.ParseDuration)
	labels, err := parsePairs("label", f.labels)
	if err != nil {
		errs = append(errs, err)
	}
	c.Labels = labels
	return c, errs
}

func (a *app) setCommand() *cobra.Command {
	var f limitFlags
	var rules []string
	cmd := &cobra.Command{
		Use:   "set [flags] ID",
		Short: "Change the limits, times and network rules of a session that lives",
		Long: `set gives a session other limits, and its programs feel them at once. All that the flags ask for is
changed, or nothing: a limit below what the session uses is refused. With --network-rule its programs may connect to
what these rules say, and to nothing that only the rules of before did: such connections are cut.`,
		Example: `  boxctl set --memory 1GiB --cpus 2 work
  boxctl set --network-rule pypi.org --network-rule '*.pythonhosted.org' work
  boxctl set --network-rule none work`,
		Args: usage(ids(cobra.ExactArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			change, errs := f.change()
			change.NetworkRules = networkRules(rules)
			if len(errs) > 0 {
				return &usageError{err: errors.Join(errs...)}
			}
			given := false
			f.set.VisitAll(func(flag *pflag.Flag) {
				given = given || flag.Changed && cmd.LocalNonPersistentFlags().Lookup(flag.Name) != nil
			})
			if !given {
				return &usageError{err: errors.New("set: nothing to change; give at least one flag")}
			}
			s, err := c.ChangeSession(cmd.Context(), args[0], &change)
			if err == nil && a.json {
				return a.printJSON(s)
			}
			return err
		}),
	}
	f.add(cmd)
	cmd.Flags().StringArrayVar(&rules, "network-rule", nil, "`RULE` of where programs may connect to, such as pypi.org or '151.101.0.0/16 tcp 443', in the place of all it has; none is nowhere; may be repeated")
	return cmd
}

// networkRules are those of the flags; the one word none is no rule at all.
func networkRules(flags []string) []string {
	if len(flags) == 1 && flags[0] == "none" {
		return []string{}
	}
	return flags
}

func (a *app) freezeCommand() *cobra.Command {
	return a.eachSession("freeze ID...", "Stop all programs of sessions where they are",
		"freeze returns when nothing in the sessions runs any more. Time goes on for them: timeouts and the session's own times "+
			"end what they would have ended.", ids(cobra.MinimumNArgs(1)), (*client.Client).FreezeSession)
}

func (a *app) thawCommand() *cobra.Command {
	return a.eachSession("thaw ID...", "Let the programs of frozen sessions go on", "", ids(cobra.MinimumNArgs(1)), (*client.Client).ThawSession)
}

func (a *app) renewCommand() *cobra.Command {
	return a.eachSession("renew ID...", "Begin the idle time of sessions anew",
		`renew is a use of sessions that runs nothing: each ends when it was not used for its ttl from now on. When it ends
at the latest, by its max_lifetime, stays as it is; set changes that.`, cobra.MinimumNArgs(1), (*client.Client).RenewSession)
}

// eachSession makes a command that does something to every session that is named.
func (a *app) eachSession(use, short, long string, args cobra.PositionalArgs, do func(*client.Client, context.Context, string) (api.Session, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: usage(args),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			list := api.SessionList{Sessions: []api.Session{}}
			var errs []error
			for _, id := range args {
				s, err := do(c, cmd.Context(), id)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", render.Printable(id), err))
					continue
				}
				list.Sessions = append(list.Sessions, s)
			}
			if a.json {
				errs = append(errs, a.printJSON(list))
			}
			return errors.Join(errs...)
		}),
	}
}
