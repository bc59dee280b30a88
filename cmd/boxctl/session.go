// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// sessionFlags are the flags of run and create; only given flags become part of a request.
type sessionFlags struct {
	limitFlags
	profile, image, network string
	tmp, wait               string
	here, workspace         string
	template                string
	mounts, env, variables  []string
	skills, inputs, rules   []string
	drives, secrets         []string
	push                    string
	rlimits                 []string
	name                    string // of run and create
	userName, home          string
	dry, writable, strict   bool
	diskHome                bool
}

func (f *sessionFlags) add(cmd *cobra.Command) {
	f.set = cmd.Flags()
	f.set.StringVarP(&f.profile, "profile", "p", "", "`PROFILE` profile to take limits and rules from")
	f.set.StringVar(&f.image, "image", "", "`IMAGE` root filesystem: host, or an image of boxctl images ls")
	f.set.BoolVar(&f.diskHome, "home-on-disk", false, "store the home directory on disk instead of in memory; it stays while the box is stopped")
	f.set.BoolVar(&f.writable, "writable-root", false, "let programs change files of the image, for this box only")
	f.set.StringVar(&f.userName, "user-name", "", "`NAME` name of the user that programs run as; the id stays 1000")
	f.set.StringVar(&f.home, "home", "", "`DIRECTORY` home directory of that user: /root or /home/NAME")
	f.set.StringVar(&f.network, "network", "", "`MODE` network mode: off, egress (what --network-rule allows) or host")
	f.set.StringArrayVar(&f.rules, "network-rule", nil, "`RULE` allow connections to a host name or CIDR, for example pypi.org or '10.0.0.0/8 tcp 443'")
	f.set.BoolVar(&f.strict, "network-strict", false, "check the host name (TLS SNI, HTTP Host) of connections to ports 80 and 443 against the rules")
	f.limitFlags.add(cmd)
	f.set.StringVar(&f.tmp, "tmp", "", "`SIZE` size of /tmp, /run, /dev/shm and the home directory together")
	f.set.StringArrayVar(&f.rlimits, "ulimit", nil, "`NAME=SOFT:HARD` resource limit of each process, for example nofile=1024:4096")
	f.set.StringVar(&f.wait, "wait", "", "`TIME` wait up to this time for free capacity, for example 5s")
	f.set.StringArrayVarP(&f.env, "env", "e", nil, "`NAME=value` set an environment variable; NAME alone passes yours on")
	f.set.StringArrayVarP(&f.mounts, "mount", "v", nil, "`MOUNT` bind-mount a host path: SOURCE:TARGET[:ro|rw[:OWNER-UID]]")
	f.set.StringVar(&f.here, "here", "", "`MODE` use this directory as /workspace, rw (default) or ro")
	f.set.Lookup("here").NoOptDefVal = "rw"
	f.set.StringVar(&f.workspace, "workspace", "", "`NAME` use a named workspace, which outlives the box")
	f.set.StringArrayVar(&f.inputs, "input", nil, "`NAME[:TARGET]` mount a workspace read-only, at /mnt/NAME or TARGET")
	f.set.StringArrayVar(&f.skills, "skill", nil, "`NAME` mount a skill at /skills/NAME, if it exists")
	f.set.StringArrayVar(&f.drives, "drive", nil, "`NAME[@VERSION]` mount a drive read-only at /drives/NAME")
	f.set.StringArrayVar(&f.secrets, "secret", nil, "`NAME` give programs a placeholder for a secret; its value goes only into requests to its hosts")
	f.set.StringVar(&f.push, "push", "", "`BUCKET[/PREFIX]` push each --output-version to a bucket that box.toml names")
	f.set.StringVar(&f.template, "template", "", "`TEMPLATE` name the box by --var: per_chat, per_user, global or {chat}_{user}")
	f.set.StringArrayVar(&f.variables, "var", nil, "`NAME=value` variable for --template")
	f.set.BoolVar(&f.dry, "dry-run", false, "print what would be created, as JSON, and create nothing")
}

// addName is for commands that make a box with a name.
func (f *sessionFlags) addName() {
	f.set.StringVar(&f.name, "name", "", "`NAME` name of the box (default: random)")
}

// request makes a request from the given flags.
func (f *sessionFlags) request(id string) (*api.SessionRequest, error) {
	req := &api.SessionRequest{ID: id, Profile: f.profile, Template: f.template, Workspace: f.workspace, Inputs: workspaceInputs(f.inputs), Skills: f.skills, Drives: f.drives, Secrets: f.secrets, Push: f.push}
	given := f.set.Changed
	if given("image") {
		req.Image = &f.image
	}
	if given("home-on-disk") {
		req.HomeOnDisk = &f.diskHome
	}
	if given("writable-root") {
		req.ReadOnlyRoot = new(!f.writable)
	}
	if given("user-name") {
		req.UserName = &f.userName
	}
	if given("home") {
		req.Home = &f.home
	}
	if given("network") && strings.ContainsAny(f.network, ".:/*") { // docker habit: a host or network instead of a mode
		return nil, &usageError{err: fmt.Errorf("--network %s: must be off, egress or host", render.ShellWord(f.network)), hint: "--network-rule " + render.ShellWord(f.network) + " allows connections to it"}
	}
	if given("network") {
		req.Network = &f.network
	} else if given("network-rule") {
		req.Network = new("egress")
	}
	if given("network-strict") {
		req.NetworkStrict = &f.strict
	}
	change, errs := f.change()
	if owner := f.set.Lookup("owner"); owner != nil && owner.Changed {
		errs = append(errs, errors.New("--owner: a new box is always your own"))
	}
	req.Patch, req.Labels, req.Metadata = change.Patch, change.Labels, change.Metadata
	req.Tmp = parseFlag(&errs, f.set, "tmp", f.tmp, quantity.ParseSize)
	req.Wait = parseFlag(&errs, f.set, "wait", f.wait, quantity.ParseDuration)
	var err error
	if req.NetworkRules, err = networkRules(f.rules); err != nil {
		errs = append(errs, err)
	}
	if req.Env, err = parseEnv(f.env); err != nil {
		errs = append(errs, err)
	}
	if req.Rlimits, err = parsePairs("ulimit", f.rlimits); err != nil {
		errs = append(errs, err)
	}
	if req.Variables, err = parsePairs("var", f.variables); err != nil {
		errs = append(errs, err)
	}
	if req.Mounts, err = f.parseMounts(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, &usageError{err: errors.Join(errs...)}
	}
	return req, nil
}

// parseFlag parses a flag's text if the flag was given.
func parseFlag[T any](errs *[]error, set *pflag.FlagSet, name, text string, parse func(string) (T, error)) *T {
	if !set.Changed(name) {
		return nil
	}
	v, err := parse(text)
	if err != nil {
		*errs = append(*errs, fmt.Errorf("--%s %s: %w", name, render.ShellWord(text), err))
		return nil
	}
	return &v
}

// parseEnv reads NAME=value, and NAME as boxctl's own variable.
func parseEnv(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	env := map[string]string{}
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				return nil, fmt.Errorf("--env %s: not in the environment of boxctl; give it as NAME=value", name)
			}
		}
		env[name] = value
	}
	return env, nil
}

// parsePairs reads name=value.
func parsePairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	pairs := map[string]string{}
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			return nil, fmt.Errorf("--%s %s: must be NAME=value", flag, render.ShellWord(e))
		}
		pairs[name] = value
	}
	return pairs, nil
}

// printPlan prints a plan, and fails if that is a refusal.
func (a *app) printPlan(p *api.Plan, err error) error {
	if err == nil {
		err = a.printJSON(p)
	}
	if err == nil && p.Refused != nil {
		return &client.Error{Problem: *p.Refused}
	}
	return err
}

func (f *sessionFlags) parseMounts() ([]api.Mount, error) {
	var mounts []api.Mount
	for _, text := range f.mounts {
		m, err := parseMount("-v", text)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	if f.here == "" {
		return mounts, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("--here: %w", err)
	}
	if f.here != "ro" && f.here != "rw" {
		return nil, fmt.Errorf("--here=%s: must be ro or rw", render.ShellWord(f.here))
	}
	return append(mounts, api.Mount{Source: dir, Target: "/workspace", Mode: f.here}), nil
}

func (a *app) createCommand() *cobra.Command {
	var f sessionFlags
	cmd := &cobra.Command{
		Use:   "create [flags] [NAME]",
		Short: "Create a box",
		Long: `create creates a box and prints its name. If you already have a box of that name and it matches the
flags, create does nothing; if it does not match, create fails and names the differences.

--network-rule implies --network egress. The rule "none" allows no connection.`,
		Args: usage(ids(cobra.MaximumNArgs(1))),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			id, err := nameArg(strings.Join(args, ""), f.name)
			if err != nil {
				return err
			}
			req, err := f.request(id)
			if err != nil {
				return err
			}
			if f.dry {
				p, err := c.PlanSession(cmd.Context(), req)
				return a.printPlan(&p, err)
			}
			s, _, err := c.CreateSession(cmd.Context(), req)
			return a.answer(s, err, func() error {
				a.showClamped(s.Clamped)
				fmt.Fprintln(a.stdout, s.ID)
				return nil
			})
		}),
	}
	f.add(cmd)
	f.addName()
	return cmd
}

func (a *app) lsCommand() *cobra.Command {
	var f client.SessionFilter
	var labels, metadata []string
	var l *listing[api.Session]
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List boxes",
		Long: `ls lists your boxes with their limits. RUNNING is the number of programs that exec runs now,
EXPIRES IN the time until the idle timeout removes the box. With several --label and --metadata a
box must have all of them. With --metadata, --json and --format have the metadata of boxes too.`,
		Example: `  boxctl ls --label team=web --metadata task=17`,
		Args:    usage(cobra.NoArgs),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			var errs [2]error
			f.Labels, errs[0] = parsePairs("label", labels)
			f.Metadata, errs[1] = parsePairs("metadata", metadata)
			if err := errors.Join(errs[:]...); err != nil {
				return &usageError{err: err}
			}
			f.WithMetadata = len(metadata) > 0
			list, err := c.FindSessions(cmd.Context(), &f)
			return l.print(list, api.SessionList{Sessions: list}, err, func() error { return render.Sessions(a.stdout, list, time.Now()) })
		}),
	}
	l = newListing(a, cmd, "ids", func(s *api.Session) string { return s.ID })
	cmd.Flags().BoolVarP(&f.All, "all", "a", false, "list the boxes of all users (operators)")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "`NAME=value` list only boxes with this label")
	cmd.Flags().StringArrayVar(&metadata, "metadata", nil, "`NAME=value` list only boxes with this metadata")
	return cmd
}

func (a *app) inspectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect BOX",
		Short: "Show all details of a box as JSON",
		Long: `inspect prints the settings of a box, how each of its limits is enforced on this host (enforcement),
and its current resource use. Environment variables are shown by name only.`,
		Args: usage(ids(cobra.ExactArgs(1))),
	}
	return inspecting(a, cmd, func(ctx context.Context, c *client.Client, id string) (api.Session, error) { return c.Session(ctx, id) })
}

func (a *app) rmCommand() *cobra.Command {
	var all, force bool
	cmd := &cobra.Command{
		Use:   "rm [flags] BOX...",
		Short: "Remove boxes and everything that runs in them",
		Long: `rm ends everything that runs in the boxes, and removes them with their workspaces. Named workspaces
and mounted host directories stay, with the files written there. --all removes all your boxes; on a
terminal it asks first.`,
		Example: `  boxctl rm work
  boxctl rm --all --force`,
		Args: usage(ids(func(cmd *cobra.Command, args []string) error {
			if all {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		})),
		RunE: a.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if all {
				var err error
				if args, err = a.allBoxes(cmd.Context(), c, force); err != nil {
					return err
				}
			}
			var errs []error
			removed := []string{}
			for _, id := range args {
				if err := c.DeleteSession(cmd.Context(), id); err != nil {
					if !force || !errors.Is(err, client.NotFound) {
						errs = append(errs, err)
					}
					continue
				}
				removed = append(removed, id)
			}
			if a.json {
				errs = append(errs, a.printJSON(map[string][]string{"removed": removed}))
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "remove all your boxes")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask, and ignore boxes that do not exist")
	return cmd
}

// allBoxes returns the names of the caller's boxes, or of those of --owner, once the user has confirmed their removal.
func (a *app) allBoxes(ctx context.Context, c *client.Client, force bool) ([]string, error) {
	list, err := c.Sessions(ctx, a.owner != "")
	if err != nil {
		return nil, err
	}
	var names, shown []string
	for i := range list {
		if a.owner == "" || list[i].Owner == a.owner {
			names = append(names, list[i].ID)
			shown = append(shown, render.Printable(list[i].ID))
		}
	}
	switch {
	case force || len(names) == 0:
		return names, nil
	case !render.IsTerminal(a.stdin):
		return nil, &usageError{err: errors.New("rm --all: standard input is not a terminal to ask on"), hint: "boxctl rm --all --force"}
	}
	fmt.Fprintf(a.stderr, "remove %d boxes: %s? [y/N] ", len(names), strings.Join(shown, ", "))
	answer, err := bufio.NewReader(io.LimitReader(a.stdin, maxAnswer)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return nil, errors.New("nothing was removed")
	}
	return names, nil
}

// maxAnswer is the maximum length of an answer to yes or no, in bytes.
const maxAnswer = 64

// ids refuses an empty id too: it is most often an empty variable, and create would make an unwanted session.
func ids(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return err
		}
		if slices.Contains(args, "") {
			return client.ErrNoID
		}
		return nil
	}
}
