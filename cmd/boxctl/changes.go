// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// changesFlags are the flags about changes that a program makes in the workspace.
type changesFlags struct {
	changes bool
	version string // of its output
	with    api.ChangesWith
}

// add adds the flags to a command.
func (f *changesFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.version, "output-version", "", "`VERSION` create /workspace/output/VERSION and set OUTPUT_DIR to it")
	set.BoolVar(&f.changes, "changes", false, "list created, changed and removed workspace files on stderr")
	set.StringArrayVar(&f.with.Include, "changes-include", nil, "`GLOB` with --changes: list only matching files")
	set.StringArrayVar(&f.with.Exclude, "changes-exclude", nil, "`GLOB` with --changes: leave out matching files and directories")
}

// request sets the request's fields from the flags.
func (f *changesFlags) request(req *api.ExecRequest, errs *[]error) {
	req.OutputVersion = f.version
	narrower := f.with.Include != nil || f.with.Exclude != nil
	if narrower && !f.changes {
		*errs = append(*errs, errors.New("--changes-include and --changes-exclude come with --changes"))
	}
	if req.Changes = f.changes; f.changes && narrower {
		req.ChangesWith = &f.with
	}
}

// checkTerminal refuses the flags together with a terminal.
func (f *changesFlags) checkTerminal(terminal bool) error {
	if f.changes && terminal {
		return &usageError{err: errors.New("--changes and a terminal exclude each other: a terminal can be detached before the program ends")}
	}
	return nil
}

// showChanges prints what a program has changed; nil: not requested.
func showChanges(w io.Writer, c *api.Changes) {
	if c == nil {
		return
	}
	if c.Unknown != "" {
		fmt.Fprintf(w, "boxctl: its changes are not known: %s\n", fileName(c.Unknown))
		return
	}
	for _, f := range c.Created {
		fmt.Fprintf(w, "created %s (%s, %d bytes)\n", fileName(f.Path), f.Type, f.Size)
	}
	for _, f := range c.Changed {
		fmt.Fprintf(w, "changed %s (%s, %d bytes)\n", fileName(f.Path), f.Type, f.Size)
	}
	for _, f := range c.Removed {
		fmt.Fprintf(w, "removed %s (%s)\n", fileName(f.Path), f.Type)
	}
	fmt.Fprintf(w, "boxctl: %d created, %d changed, %d removed", c.Counts.Created, c.Counts.Changed, c.Counts.Removed)
	if c.Truncated {
		fmt.Fprintf(w, "; not all are listed")
	}
	if c.Unreadable > 0 {
		fmt.Fprintf(w, "; %d directories cannot be read", c.Unreadable)
	}
	if !c.Exact {
		fmt.Fprintf(w, "; other programs may have made some of them")
	}
	fmt.Fprintln(w)
}

// diff lists what programs have changed in the image of a box.
func (f fileCommands) diff() *cobra.Command {
	var req api.RootDiff
	cmd := &cobra.Command{
		Use:   "diff BOX",
		Short: "List changes to the image of a box",
		Long: `diff lists the files of a box that differ from its image, if the box was created with
--writable-root. /workspace, /tmp and the home directory are not part of an image.`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			got, err := c.DiffRoot(cmd.Context(), args[0], &req)
			return f.answer(got, err, func() error {
				showChanges(f.stdout, &got)
				return nil
			})
		}),
	}
	cmd.Flags().IntVar(&req.Limit, "limit", 0, "`N` list at most this many changes (default 1000)")
	return cmd
}

// discard reverts what programs have changed in the image of a box.
func (f fileCommands) discard() *cobra.Command {
	return &cobra.Command{
		Use:   "discard BOX [PATH...]",
		Short: "Undo changes to the image of a box",
		Long: `discard resets the root of a box that was created with --writable-root to its image, or only the
given absolute paths. Changed and removed files are copied from the image, and take up disk space as
before; new files are removed. Programs continue to run, and a program that has a file open keeps
that file until it closes it. /workspace, /tmp, the home directory and mounts do not change.`,
		Example: `  boxctl fs discard work
  boxctl fs discard work /usr/local /etc/profile`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			got, err := c.DiscardRoot(cmd.Context(), args[0], &api.RootDiscard{Paths: args[1:]})
			return f.answer(got, err, func() error {
				_, err = fmt.Fprintf(f.stdout, "%d removed, %d restored\n", got.Removed, got.Restored)
				return err
			})
		}),
	}
}

// fetch copies several files out of a box in one stream.
func (f fileCommands) fetch() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "fetch BOX TARGET PATH...",
		Short: "Copy several files out of a box",
		Long: `fetch copies files and directories with their paths out of a box, in one stream, into a new
directory TARGET. Either all of them are copied or none. Paths start at /workspace, or at --from.`,
		Example: `  boxctl fs fetch work results out/report.pdf out/data.csv`,
		Args:    usage(cobra.MinimumNArgs(3)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			parent, base := path.Split(path.Clean(args[1]))
			if parent == "" {
				parent = "."
			}
			root, err := os.OpenRoot(parent)
			if err != nil {
				return err
			}
			defer root.Close()
			if _, err := root.Lstat(base); err == nil {
				return fmt.Errorf("%s exists: fetch makes a directory", args[1])
			}
			archive, err := c.DownloadFiles(cmd.Context(), args[0], &api.ArchiveRequest{Path: dir, Paths: args[2:]})
			if err != nil {
				return err
			}
			defer archive.Close()
			p := f.progress("received", 0)
			skipped, err := unpack(root, base, true, false, io.TeeReader(archive, p))
			p.end()
			f.printLeftOut(skipped, err)
			return err
		}),
	}
	f.addQuiet(cmd, "show no progress")
	cmd.Flags().StringVar(&dir, "from", "", "`DIRECTORY` directory in the box that paths start from (default /workspace)")
	return cmd
}
