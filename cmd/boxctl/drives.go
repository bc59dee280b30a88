// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/transfer"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

type driveCommands struct{ *app }

// driveCommand returns boxctl drives with its subcommands.
func (a *app) driveCommand() *cobra.Command {
	s := driveCommands{a}
	return group("drives", "Manage drives: versioned, read-only directories", `A drive has a name of two parts, OWNER/PROJECT, and versions that never change. Boxes read one
version at /drives/OWNER/PROJECT: run and create take --drive, and drives switch changes the version
in a running box.`,
		lsCommand(a, "List drives", (*client.Client).Drives, func(list []api.Drive) any { return api.DriveList{Drives: list} }, s.print, func(d *api.Drive) string { return d.Name }),
		s.show(), s.fill(), s.promote(), s.index(), s.text(), s.archive(), s.push(), s.send(), s.keep(),
		a.rmEachCommand("rm NAME[@VERSION]...", "Remove drives or versions that no box uses", func(c *client.Client, ctx context.Context, text string) error {
			name, version, err := parseDriveVersion(text)
			if err != nil {
				return err
			}
			return c.DeleteDrive(ctx, name, version)
		}),
		s.switchTo(),
		a.takeCommand("detach BOX NAME...", "Detach drives from a running box",
			`detach unmounts drives in a running box. A drive in use stays, and the programs that use it are
listed. With --force it is detached anyway: files that are open stay open, and nothing else can be
opened.`, (*client.Client).DetachDrive))
}

// parseDriveVersion reads NAME[@VERSION]; 0 is the newest.
func parseDriveVersion(text string) (name string, version int, err error) {
	name, number, pinned := strings.Cut(text, "@")
	if pinned {
		if version, err = strconv.Atoi(number); err != nil || version < 1 {
			return "", 0, &usageError{err: fmt.Errorf("invalid drive %q: must be NAME, or NAME@VERSION with the number of a version", text)}
		}
	}
	return name, version, nil
}

func (s driveCommands) print(list []api.Drive) error {
	list = slices.DeleteFunc(slices.Clone(list), func(d api.Drive) bool { return len(d.Versions) == 0 })
	return table(s.stdout, "NAME\tVERSION\tSIZE\tENTRIES\tVERSIONS\tTOTAL SIZE", list, func(d *api.Drive) string {
		all := int64(0)
		for i := range d.Versions {
			all += d.Versions[i].Bytes
		}
		newest := &d.Versions[len(d.Versions)-1]
		return fmt.Sprintf("%s\t%d\t%v\t%d\t%d\t%v", d.Name, newest.Version, roundSize(newest.Bytes), newest.Entries, len(d.Versions), roundSize(all))
	})
}

func (s driveCommands) show() *cobra.Command {
	var l *listing[api.DriveVersion]
	cmd := &cobra.Command{
		Use: "show NAME", Short: "List the versions of a drive", Args: usage(cobra.ExactArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			d, err := c.Drive(cmd.Context(), args[0])
			return l.print(d.Versions, d, err, func() error { return s.printVersions(&d, nil) })
		}),
	}
	l = newListing(s.app, cmd, "numbers of versions", func(v *api.DriveVersion) string { return strconv.Itoa(v.Version) })
	return cmd
}

func (s driveCommands) printVersions(d *api.Drive, err error) error {
	return s.answer(d, err, func() error {
		return table(s.stdout, "VERSION\tSIZE\tENTRIES\tBOXES\tPUSHED\tSOURCE", d.Versions, func(v *api.DriveVersion) string {
			pushed := "-"
			if !v.PushedAt.IsZero() {
				pushed = "yes"
			}
			return fmt.Sprintf("%d\t%v\t%d\t%d\t%s\t%s", v.Version, roundSize(v.Bytes), v.Entries, v.Sessions, pushed, render.Printable(v.Origin))
		})
	})
}

// printVersion prints the version that was made.
func (s driveCommands) printVersion(v *api.DriveVersion, err error) error {
	return s.answer(v, err, func() error {
		_, err := fmt.Fprintf(s.stdout, "%d %s\n", v.Version, v.Digest)
		return err
	})
}

// driveFlags adds the flags of commands that make a version.
func driveFlags(cmd *cobra.Command, f *client.DriveFilling) {
	cmd.Flags().StringVar(&f.Into, "into", "", "`DIRECTORY` put the files into this directory of the drive")
	cmd.Flags().BoolVar(&f.Add, "add", false, "also take over the files of the newest version")
}

func (s driveCommands) fill() *cobra.Command {
	var f client.DriveFilling
	o := transfer.BucketOptions{Getenv: os.Getenv}
	last, limit := -1, ""
	cmd := &cobra.Command{
		Use: "fill [flags] NAME SOURCE", Short: "Create the next version of a drive", Args: usage(cobra.ExactArgs(2)),
		Long: `fill creates a version from a directory, or from a zip or tar archive (- is standard input), and the
drive if it does not exist. Either all files are stored or none. Links are refused. Without --add
the version contains only the files of the source. If it would equal the newest version, no version
is created.

With s3://BUCKET/PREFIX the version is made from the objects below PREFIX/ of an S3-compatible
bucket. If some of their names cannot be file names, these are listed and nothing is fetched. See
push for the credentials.`,
		Example: `  boxctl drives fill me/data ./data
  boxctl drives fill me/data s3://datasets/2026`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if cmd.Flags().Changed("if-version") {
				f.IfVersion = &last
			}
			archive, cleanup, err := s.content(cmd.Context(), args[1], &o, limit)
			if err != nil {
				return err
			}
			defer cleanup()
			f.Archive = archive
			v, _, err := c.FillDrive(cmd.Context(), args[0], &f)
			return s.printVersion(&v, err)
		}),
	}
	driveFlags(cmd, &f)
	s.addQuiet(cmd, "show no progress")
	cmd.Flags().IntVar(&last, "if-version", 0, "`N` fail unless this is the newest version; 0: no version exists")
	o.Flags(cmd.Flags())
	cmd.Flags().StringVar(&limit, "max-size", "1GiB", "`SIZE` refuse to fetch more than this from the bucket")
	return cmd
}

// content opens the content of a drive: a bucket, or what app.source takes. done releases it.
func (s driveCommands) content(ctx context.Context, from string, o *transfer.BucketOptions, limit string) (r io.Reader, done func(), err error) {
	if !transfer.IsBucket(from) {
		return s.source(from, false)
	}
	size, err := quantity.ParseSize(limit)
	if err != nil {
		return nil, nil, &usageError{err: fmt.Errorf("--max-size %s: %w", render.ShellWord(limit), err)}
	}
	o.Address = from
	return s.fromBucket(ctx, o, size)
}

func (s driveCommands) promote() *cobra.Command {
	var f client.DriveFilling
	o := transfer.BucketOptions{Getenv: os.Getenv}
	cmd := &cobra.Command{
		Use: "promote [flags] NAME BOX [PATH]", Short: "Create the next version of a drive from a box", Args: usage(cobra.RangeArgs(2, 3)),
		Long: `promote creates a version from a directory of a running box, or with --output-version from the
output of programs that ran with that version.

With --push-to it also pushes the version to a bucket, like push. From then on the drive retains
versions until they are pushed: if the push fails, nothing is lost, even if the box ends, and
boxctl drives push continues it.`,
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			f.Session = args[1]
			if len(args) > 2 {
				f.Path = args[2]
			}
			if (f.Path == "") == (f.Output == "") {
				return &usageError{err: errors.New("give the PATH of a directory, or --output-version")}
			}
			if o.Address == "" {
				v, _, err := c.FillDrive(cmd.Context(), args[0], &f)
				return s.printVersion(&v, err)
			}
			b, err := transfer.OpenBucket(&o) // a mistake here must make nothing
			if err != nil {
				return &usageError{err: err}
			}
			defer b.Close()
			v, _, err := c.FillDrive(cmd.Context(), args[0], &f)
			if err != nil {
				return err
			}
			if _, err := c.ChangeDrive(cmd.Context(), args[0], &api.DriveChange{Push: new(true)}); err != nil {
				return err
			}
			return s.pushTo(cmd.Context(), b, args[0], v.Version, false)
		}),
	}
	driveFlags(cmd, &f)
	o.Flags(cmd.Flags())
	o.SendFlags(cmd.Flags())
	s.addQuiet(cmd, "show no progress")
	cmd.Flags().StringVar(&o.Address, "push-to", "", "`s3://BUCKET/PREFIX` then push the version to this bucket")
	cmd.Flags().StringVar(&f.Output, "output-version", "", "`VERSION` take the directory /workspace/output/VERSION")
	return cmd
}

func (s driveCommands) index() *cobra.Command {
	var prefix string
	var l *listing[api.DriveEntry]
	cmd := &cobra.Command{
		Use: "index [flags] NAME[@VERSION]", Short: "List the files of a drive", Args: usage(cobra.ExactArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, version, err := parseDriveVersion(args[0])
			if err != nil {
				return err
			}
			all, err := driveIndex(cmd.Context(), c, name, version, prefix)
			return l.print(all.Entries, all, err, func() error {
				var entries []entry
				for i := range all.Entries {
					e := &all.Entries[i]
					entries = append(entries, entry{e.Type, e.Executable, e.Size, e.Path})
				}
				return s.printEntries(entries)
			})
		}),
	}
	l = newListing(s.app, cmd, "paths", func(e *api.DriveEntry) string { return e.Path })
	cmd.Flags().StringVar(&prefix, "prefix", "", "`TEXT` list only paths that start with this text")
	return cmd
}

// driveIndex lists all entries of a version.
func driveIndex(ctx context.Context, c *client.Client, name string, version int, prefix string) (api.DriveIndex, error) {
	all := api.DriveIndex{Entries: []api.DriveEntry{}}
	for offset := 0; ; {
		page, err := c.DriveIndex(ctx, name, version, prefix, offset, 1000)
		if err != nil {
			return all, err
		}
		version, all.Version = page.Version.Version, page.Version // the following pages are of the same version
		all.Entries = append(all.Entries, page.Entries...)
		if offset = page.Next; offset == 0 {
			return all, nil
		}
	}
}

func (s driveCommands) text() *cobra.Command {
	var bytes int
	cmd := &cobra.Command{
		Use: "text [flags] NAME[@VERSION]", Short: "Print a short description of a drive for a prompt", Args: usage(cobra.ExactArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, version, err := parseDriveVersion(args[0])
			if err != nil {
				return err
			}
			t, err := c.DriveText(cmd.Context(), name, version, bytes)
			return s.answer(t, err, func() error {
				_, err = io.WriteString(s.stdout, t.Text)
				return err
			})
		}),
	}
	cmd.Flags().IntVar(&bytes, "bytes", 4096, "`N` maximum length in bytes")
	return cmd
}

func (s driveCommands) archive() *cobra.Command {
	return &cobra.Command{
		Use: "archive NAME[@VERSION]", Short: "Write a drive to standard output as a tar archive", Args: usage(cobra.ExactArgs(1)),
		RunE: s.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			name, version, err := parseDriveVersion(args[0])
			if err != nil {
				return err
			}
			r, err := c.DriveArchive(cmd.Context(), name, version)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(s.stdout, r)
			return err
		}),
	}
}
