// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// completionTimeout is how long a completion waits for boxd. A boxd that its socket unit has yet to start takes longer:
// then nothing is offered until the next time.
const completionTimeout = 500 * time.Millisecond

// completionCommand prints the completion script of a shell.
func completionCommand(out io.Writer) *cobra.Command {
	scripts := map[string]func(root *cobra.Command) error{
		"bash": func(root *cobra.Command) error { return root.GenBashCompletionV2(out, true) },
		"zsh":  func(root *cobra.Command) error { return root.GenZshCompletion(out) },
		"fish": func(root *cobra.Command) error { return root.GenFishCompletion(out, true) },
	}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long: `completion prints a script that completes boxctl commands in bash, zsh or fish: commands, flags, and
the names of your boxes and processes. The packages of boxd install the scripts of all three shells.`,
		Example: `  . <(boxctl completion bash)
  boxctl completion zsh > ~/.zfunc/_boxctl
  boxctl completion fish > ~/.config/fish/completions/boxctl.fish`,
		ValidArgs: slices.Sorted(maps.Keys(scripts)),
		Args: usage(func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && scripts[args[0]] == nil {
				return &usageError{err: fmt.Errorf("unknown shell %q: use bash, zsh or fish", args[0])}
			}
			return cobra.ExactArgs(1)(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, args []string) error { return scripts[args[0]](cmd.Root()) },
	}
}

// completer offers names from boxd, with a client that is made after the flags were parsed.
type completer struct{ client func() *client.Client }

// source asks boxd for completions of one argument. args are the arguments before it.
type source func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error)

// addCompletion registers completions for all commands and flags; client is called once the flags have been parsed. Where nothing is
// registered no local file would fit, so none is offered. A boxd that does not answer at once is not waited for.
func addCompletion(root *cobra.Command, client func() *client.Client) {
	a := completer{client}
	root.CompletionOptions.DisableDefaultCmd = true
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	arguments, flags := a.arguments(), a.flags()
	eachCommand(root, func(cmd *cobra.Command) {
		path := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		if f, ok := arguments[path]; ok {
			cmd.ValidArgsFunction = f
		}
		cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
			f, ok := flags[path+" --"+flag.Name]
			if !ok {
				f, ok = flags["--"+flag.Name]
			}
			if ok {
				_ = cmd.RegisterFlagCompletionFunc(flag.Name, f) // fails if there is no such flag
			}
		})
	})
}

// arguments returns completions of command arguments. Files in a box are not offered: boxctl does not look into it.
func (a completer) arguments() map[string]cobra.CompletionFunc {
	box := a.arg(boxes(""))
	all := map[string]cobra.CompletionFunc{
		"run": files, // in the directory that --here makes the workspace
		"cp":  a.copied,

		"rm":     a.args(boxes("")),
		"freeze": a.args(boxes("ready")),
		"thaw":   a.args(boxes("frozen")),
		"renew":  a.args(boxes("")),
		"attach": a.arg(boxes(""), processes(true)),
		"logs":   a.arg(boxes(""), processes(false)),
		"stop":   a.args(boxes(""), processes(true)),
		"wait":   a.args(boxes(""), processes(false)),
		"umount": a.args(boxes(""), mounts),

		"images import":      files,
		"images inspect":     a.arg(images),
		"images rm":          a.args(images),
		"workspaces inspect": a.arg(workspaces),
		"workspaces rm":      a.args(workspaces),
		"workspaces set":     a.arg(workspaces),
		"snapshots restore":  a.arg(boxes("stopped"), snapshots),
		"snapshots rm":       a.args(boxes(""), snapshots),
		"skills show":        a.arg(skills),
		"skills update":      a.arg(skills),
		"skills files":       a.arg(skills),
		"skills cat":         a.arg(skills),
		"skills write":       a.arg(skills),
		"skills rm":          a.args(skills),
		"skills index":       a.args(skills),
		"skills preview":     files,
		"skills install":     files,
		"skills activate":    a.args(boxes(""), skills),
		"skills deactivate":  a.args(boxes(""), skillsOf),
		"drives show":        a.arg(drives),
		"drives fill":        a.then(files, drives),
		"drives promote":     a.arg(drives, boxes("")),
		"drives index":       a.arg(drives),
		"drives text":        a.arg(drives),
		"drives archive":     a.arg(drives),
		"drives push":        a.arg(drives),
		"drives keep":        a.arg(drives),
		"drives rm":          a.args(drives),
		"drives switch":      a.args(boxes(""), drives),
		"drives detach":      a.args(boxes(""), drivesOf),
		"grant":              a.arg(grants, words("viewer\tsees its own boxes", "user\tuses boxes", "operator\tsees and ends the boxes of all users", "admin\tmay do everything")),
		"grant revoke":       a.arg(grants),
		"fleet move":         box,
		"fleet snapshot":     box,
		"fleet restore":      a.arg(fleetSnapshots),
		"fleet rm-snapshot":  a.args(fleetSnapshots),
		"fleet output":       a.arg(fleetOutputs, fleetOutputs),
		"fleet rm-output":    a.arg(fleetOutputs, fleetOutputs),
		"fleet cordon":       a.arg(nodes(func(n *api.FleetNodeState) bool { return n.Cordon == nil })),
		"fleet forget":       a.arg(nodes(func(n *api.FleetNodeState) bool { return n.State == api.FleetNodeLost })),
		"fleet uncordon":     a.arg(nodes(func(n *api.FleetNodeState) bool { return n.Cordon != nil })),
		"fleet drain":        a.arg(nodes(nil)),
		"config check":       files,
		"audit verify":       files,
	}
	for _, path := range []string{
		"exec", "start", "set", "inspect", "ps", "top", "shell", "cat", "diff", "forward", "preview", "mcp instructions",
		"fs read", "fs cat", "fs mkdir", "fs watch", "fs write", "fs edit", "fs glob", "fs grep", "fs list", "fs stat", "fs move", "fs chmod", "fs remove", "fs diff", "fs discard", "fs fetch",
		"images commit", "workspaces keep", "snapshots create", "snapshots ls", "skills scan",
	} {
		all[path] = box
	}
	all["export"] = box
	all["import"] = files
	all["mount"] = a.then(files, boxes(""))
	return all
}

// flags returns completions of flag values: of one command, or of all commands that have the flag.
func (a completer) flags() map[string]cobra.CompletionFunc {
	signals := a.value(words("TERM", "INT", "HUP", "QUIT", "KILL", "USR1", "USR2"))
	roles := a.value(words("viewer", "user", "operator", "admin"))
	return map[string]cobra.CompletionFunc{
		"--socket": files, "--mount": files, "--authfile": files, "--credentials": files, "--instructions": files,
		"--profile": a.value(profiles), "--workspace": a.value(workspaces), "--input": a.value(workspaces),
		"--skill": a.value(skills), "--drive": a.value(drives), "--session": a.value(boxes("")),
		"--image":    a.value(both(words("host\tthe programs of this host"), images)),
		"--network":  a.value(words("off\tloopback only", "egress\tconnections that --network-rule allows", "host\tthe network of this host")),
		"--here":     a.value(words("rw\tread and write", "ro\tread only")),
		"--oom":      a.value(words("process", "program", "session")),
		"--restart":  a.value(words("no", "on-failure", "always")),
		"--template": a.value(words("per_chat", "per_user", "global")),
		"--language": a.value(words("python", "bash", "sh", "node")),
		"--signal":   signals, "--stop-signal": signals, "--role": roles,
		"fleet move --node":      a.value(nodes(nil)),
		"fleet restore --node":   a.value(nodes(nil)),
		"images import --form":   a.value(words("oci", "docker", "rootfs")),
		"images pull --platform": a.value(words("linux/amd64", "linux/arm64")),
		"events --type": a.value(words(
			"session.started", "session.failed", "session.ended", "session.frozen", "session.thawed", "session.stopped", "session.changed", "exec.started", "exec.ended",
			"process.started", "process.ready", "process.restarted", "process.ended", "denied", "oom", "quota",
			"config.reloaded", "config.refused", "daemon.started", "daemon.stopping", "grant.changed", "push.done", "push.failed",
		)),
		"events --after": a.value(words("latest")),
	}
}

func files(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// arg offers one argument of each source.
func (a completer) arg(sources ...source) cobra.CompletionFunc {
	return a.then(func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}, sources...)
}

// args is arg, with any number of distinct arguments of the last source.
func (a completer) args(sources ...source) cobra.CompletionFunc {
	last := len(sources) - 1
	return a.then(func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.offer(cmd, sources[last], args, args[last:])
	}, sources...)
}

// then is arg, followed by what next offers.
func (a completer) then(next cobra.CompletionFunc, sources ...source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) < len(sources) {
			return a.offer(cmd, sources[len(args)], args, nil)
		}
		return next(cmd, args, word)
	}
}

// value offers values of a flag.
func (a completer) value(of source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return a.offer(cmd, of, args, nil)
	}
}

// copied offers boxes to copy from or to, and local files; after one of each kind only what fits.
func (a completer) copied(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 || len(args) == 1 && placeOf(args[0]).session != "" || strings.HasPrefix(word, "/") || strings.HasPrefix(word, ".") {
		return files(cmd, args, word)
	}
	list, _ := a.offer(cmd, boxes(""), args, nil)
	for i, box := range list {
		id, what, _ := strings.Cut(box, "\t")
		list[i] = cobra.CompletionWithDesc(id+":", what)
	}
	return list, cobra.ShellCompDirectiveNoSpace
}

// offer asks boxd while a line is being typed: quickly, and silently if it cannot. Values that are given already, or
// contain control characters, are not offered.
func (a completer) offer(cmd *cobra.Command, of source, args, given []string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	c := a.client()
	defer c.Close()
	all, _ := of(ctx, c, args) // an error message would appear in the middle of the line
	for _, one := range all {
		word, what, _ := strings.Cut(one, "\t")
		if !slices.Contains(given, word) && render.Printable(word) == word {
			list = append(list, cobra.CompletionWithDesc(word, oneLine(what)))
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// words always offers the same words.
func words(list ...cobra.Completion) source {
	return func(context.Context, *client.Client, []string) ([]cobra.Completion, error) { return list, nil }
}

// both offers what two sources offer.
func both(first, second source) source {
	return func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
		list, err := first(ctx, c, args)
		if err != nil {
			return nil, err
		}
		more, err := second(ctx, c, args)
		return append(slices.Clip(list), more...), err
	}
}

// each makes completions from a list of boxd.
func each[T any](list []T, err error, offer func(*T) (word, what string)) ([]cobra.Completion, error) {
	all := make([]cobra.Completion, 0, len(list))
	for i := range list {
		if word, what := offer(&list[i]); word != "" {
			all = append(all, cobra.CompletionWithDesc(word, what))
		}
	}
	return all, err
}

// boxes offers boxes in a state, or in any.
func boxes(state string) source {
	return func(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
		list, err := c.Sessions(ctx, false)
		return each(list, err, func(s *api.Session) (string, string) {
			if state != "" && s.State != state {
				return "", ""
			}
			return s.ID, s.State + ", " + s.Profile
		})
	}
}

// processes offers the processes of the box that is the first argument: the living ones, or all.
func processes(living bool) source {
	return func(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
		list, err := c.Processes(ctx, args[0])
		return each(list, err, func(p *api.Process) (string, string) {
			if living && p.State == "ended" {
				return "", ""
			}
			return p.ID, p.State + ", " + strings.Join(p.Argv, " ")
		})
	}
}

func profiles(ctx context.Context, c *client.Client, _ []string) (list []cobra.Completion, err error) {
	found, err := c.Profiles(ctx)
	for _, name := range slices.Sorted(maps.Keys(found.Profiles)) {
		p := found.Profiles[name]
		list = append(list, cobra.CompletionWithDesc(name, fmt.Sprintf("%v memory, %g CPUs, network %s", p.Memory, p.CPUs, p.Network)))
	}
	return list, err
}

func images(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Images(ctx)
	return each(list, err, func(img *api.Image) (string, string) {
		return img.Name, fmt.Sprintf("%v, %s", roundSize(img.Bytes), shortDigest(img.Digest))
	})
}

func snapshots(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	list, err := c.Snapshots(ctx, args[0])
	return each(list, err, func(k *api.Snapshot) (string, string) { return k.Name, roundSize(int64(k.Size)).String() })
}

func workspaces(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Workspaces(ctx)
	return each(list, err, func(w *api.Workspace) (string, string) {
		what := "in no box"
		if len(w.Sessions) > 0 {
			what = "in " + strings.Join(w.Sessions, ", ")
		}
		return w.Name, what
	})
}

func skills(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Skills(ctx)
	return each(list, err, func(k *api.Skill) (string, string) { return k.Name, k.Description })
}

func drives(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Drives(ctx)
	return each(list, err, func(d *api.Drive) (string, string) {
		if len(d.Versions) == 0 {
			return "", ""
		}
		newest := &d.Versions[len(d.Versions)-1]
		return d.Name, fmt.Sprintf("version %d, %v", newest.Version, roundSize(newest.Bytes))
	})
}

func grants(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Grants(ctx)
	return each(list, err, func(g *api.Grant) (string, string) {
		return g.Principal, g.Role + " until " + g.Until.Local().Format(time.DateTime)
	})
}

// nodes offers the wanted nodes of a fleet, or with nil all.
func nodes(wanted func(*api.FleetNodeState) bool) source {
	return func(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
		list, err := c.FleetNodes(ctx)
		return each(list, err, func(n *api.FleetNodeState) (string, string) {
			if wanted != nil && !wanted(n) {
				return "", ""
			}
			return n.Name, fmt.Sprintf("%s, %d boxes", n.State, n.Sessions)
		})
	}
}

func fleetSnapshots(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.FleetSnapshots(ctx)
	return each(list, err, func(k *api.FleetSnapshot) (string, string) { return k.Name, "of " + k.Session })
}

// fleetOutputs offers the boxes of which output is kept, each once, or the processes of the one that is the first argument.
func fleetOutputs(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	list, err := c.FleetOutputs(ctx)
	offered := map[string]bool{}
	return each(list, err, func(k *api.FleetOutput) (word, what string) {
		switch {
		case len(args) == 0:
			word, what = k.Session, "ended on "+k.Node
		case k.Session == args[0]:
			word, what = k.Process, cmp.Or(k.Status, k.State)
		}
		if offered[word] {
			return "", ""
		}
		offered[word] = true
		return word, what
	})
}

// mounts offers the removable mounts of the box that is the first argument.
func mounts(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	list, err := c.Mounts(ctx, args[0])
	return each(list, err, func(m *api.SessionMount) (string, string) {
		if !m.Live {
			return "", ""
		}
		return client.PathOf(m.Target, m.TargetBase64), m.Source
	})
}

// skillsOf offers the skills of the box that is the first argument.
func skillsOf(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	s, err := c.Session(ctx, args[0])
	return each(s.Skills, err, func(k *api.SessionSkill) (string, string) { return k.Name, k.Target })
}

// drivesOf offers the drives of the box that is the first argument.
func drivesOf(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	s, err := c.Session(ctx, args[0])
	return each(s.Drives, err, func(d *api.SessionDrive) (string, string) { return d.Name, fmt.Sprintf("version %d", d.Version) })
}
