// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// limitFlags are the flags of run, create and set: settings that a living session can change too. Each limit has a flag of its name.
type limitFlags struct {
	limits limits.Patch // of the given flags
	reads  []func(errs *[]error)
	labels []string
	// metadata is stored for the client that made the box.
	metadata []string
	set      *pflag.FlagSet
}

func (f *limitFlags) add(cmd *cobra.Command) {
	f.set = cmd.Flags()
	p := &f.limits
	textFlag(f, &p.Memory, quantity.ParseSize, "memory", "m", "`SIZE` memory limit, for example 512MiB")
	textFlag(f, &p.MemoryHigh, quantity.ParseSize, "memory-high", "", "`SIZE` slow programs down above this memory use")
	textFlag(f, &p.Swap, quantity.ParseSize, "swap", "", "`SIZE` swap limit, beside the memory")
	textFlag(f, &p.OOM, anyText, "oom", "", "`WHAT` what to kill when memory runs out: process, program or session")
	numberFlag(f, &p.CPUs, f.set.Float64, "cpus", "`N` CPU limit, for example 1.5")
	numberFlag(f, &p.CPUWeight, f.set.Int, "cpu-weight", "`WEIGHT` relative CPU share, 1-10000 (default 100)")
	numberFlag(f, &p.Pids, f.set.Int, "pids", "`N` maximum number of processes and threads")
	numberFlag(f, &p.IOWeight, f.set.Int, "io-weight", "`WEIGHT` relative disk share, 1-10000 (default 100)")
	textFlag(f, &p.IORead, quantity.ParseSize, "io-read", "", "`SIZE` disk read limit per second, for example 10MiB")
	textFlag(f, &p.IOWrite, quantity.ParseSize, "io-write", "", "`SIZE` disk write limit per second, for example 10MiB")
	textFlag(f, &p.WorkspaceQuota, quantity.ParseSize, "workspace-quota", "", "`SIZE` disk space limit of the workspace, for example 2GiB")
	numberFlag(f, &p.WorkspaceInodes, f.set.Int, "workspace-inodes", "`N` maximum number of files and directories in the workspace")
	numberFlag(f, &p.NetworkConnections, f.set.Int, "network-connections", "`N` maximum number of open connections")
	textFlag(f, &p.NetworkBandwidth, quantity.ParseSize, "network-bandwidth", "", "`SIZE` bandwidth limit per second in each direction, for example 1MiB")
	textFlag(f, &p.TTL, quantity.ParseDuration, "ttl", "", "`TIME` idle timeout: remove the box after this time without use")
	textFlag(f, &p.MaxLifetime, quantity.ParseDuration, "max-lifetime", "", "`TIME` remove the box after this time in any case, for example 8h")
	f.set.StringArrayVar(&f.labels, "label", nil, "`NAME=value` label")
	f.set.StringArrayVar(&f.metadata, "metadata", nil, "`NAME=value` metadata: any text that is kept with the box")
}

// numberFlag adds a flag, and sets to if the flag was given.
func numberFlag[T int | float64](f *limitFlags, to **T, define func(name string, value T, usage string) *T, name, usage string) {
	value := define(name, 0, usage)
	f.reads = append(f.reads, func(*[]error) {
		if f.set.Changed(name) {
			*to = value
		}
	})
}

// textFlag adds a flag, and sets to to its parsed text if the flag was given.
func textFlag[T any](f *limitFlags, to **T, parse func(string) (T, error), name, short, usage string) {
	text := f.set.StringP(name, short, "", usage)
	f.reads = append(f.reads, func(errs *[]error) { *to = parseFlag(errs, f.set, name, *text, parse) })
}

// timeValue is a flag value with a duration as its default.
type timeValue struct{ to *time.Duration }

// addTime adds a duration flag.
func addTime(cmd *cobra.Command, to *time.Duration, name string, def time.Duration, usage string) {
	*to = def
	cmd.Flags().Var(timeValue{to}, name, usage)
}

// String formats the duration.
func (v timeValue) String() string {
	if v.to == nil {
		return ""
	}
	return v.to.String()
}

// Set parses the duration.
func (v timeValue) Set(text string) error {
	d, err := quantity.ParseDuration(text)
	*v.to = time.Duration(d)
	return err
}

// Type is how defaultOf recognizes it.
func (timeValue) Type() string { return "duration" }

func anyText(text string) (string, error) { return text, nil }

// change makes a request from the given flags.
func (f *limitFlags) change() (c api.SessionChange, errs []error) {
	for _, read := range f.reads {
		read(&errs)
	}
	labels, err := parsePairs("label", f.labels)
	if err != nil {
		errs = append(errs, err)
	}
	metadata, err := parsePairs("metadata", f.metadata)
	if err != nil {
		errs = append(errs, err)
	}
	return api.SessionChange{Patch: f.limits, Labels: labels, Metadata: metadata}, errs
}

func (a *app) setCommand() *cobra.Command {
	var f limitFlags
	var rules []string
	cmd := &cobra.Command{
		Use:   "set [flags] BOX",
		Short: "Change limits, timeouts and network rules of a box",
		Long: `set changes the limits of a box at once. It makes all changes or none: a limit below the current use
is refused.

--network-rule replaces all network rules of the box, and closes connections that the new rules do
not allow. The rule "none" allows no connection.`,
		Example: `  boxctl set --memory 1GiB --cpus 2 work
  boxctl set --network-rule pypi.org --network-rule '*.pythonhosted.org' work
  boxctl set --network-rule none work`,
		Args: usage(ids(cobra.ExactArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			change, errs := f.change()
			var err error
			if change.NetworkRules, err = networkRules(rules); err != nil {
				errs = append(errs, err)
			}
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
	cmd.Flags().StringArrayVar(&rules, "network-rule", nil, "`RULE` allow connections to a host name or CIDR; replaces all rules, \"none\" allows nothing")
	return cmd
}

// networkRules returns the rules of the flags; the single word none means no rules.
func networkRules(flags []string) (rules []string, err error) {
	if len(flags) == 1 && flags[0] == "none" {
		return []string{}, nil
	}
	var errs []error
	for _, text := range flags {
		rule, err := networkRule(text)
		rules, errs = append(rules, rule), append(errs, err)
	}
	return rules, errors.Join(errs...)
}

func (a *app) freezeCommand() *cobra.Command {
	return a.eachSession("freeze BOX...", "Freeze the programs of boxes",
		`freeze stops the programs of boxes where they are, and returns when none of them runs. Timeouts and
lifetimes continue to count. thaw resumes the programs.`, ids(cobra.MinimumNArgs(1)), (*client.Client).FreezeSession)
}

func (a *app) thawCommand() *cobra.Command {
	return a.eachSession("thaw BOX...", "Resume the programs of frozen boxes", "", ids(cobra.MinimumNArgs(1)), (*client.Client).ThawSession)
}

func (a *app) renewCommand() *cobra.Command {
	return a.eachSession("renew BOX...", "Reset the idle timer of boxes",
		`renew restarts the idle timeout (--ttl) of boxes without running a program. The maximum lifetime
does not change; use boxctl set --max-lifetime for that.`, cobra.MinimumNArgs(1), (*client.Client).RenewSession)
}

// eachSession makes a command that does something to every named session.
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
