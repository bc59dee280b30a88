// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// filesCommands returns the commands about files.
func (a *app) filesCommands() []*cobra.Command {
	f := fileCommands{a}
	fs := &cobra.Command{
		Use:   "fs",
		Short: "Read, write and search files in a box",
		Long: `fs works on files in a box, as the user of the box, without starting a shell there. Paths that do
not begin with / start at /workspace. BOX:/PATH, as cp takes it, is BOX and /PATH.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fs.AddCommand(f.glob(), f.grep(), f.diff(), f.discard(), f.chmod(), f.fetch())
	for _, cmd := range []*cobra.Command{f.read(), f.write(), f.edit(), f.list(), f.stat(), f.cat(), f.mkdir(), f.watch(), f.move(), f.remove()} {
		fs.AddCommand(takesPlaces(cmd))
	}
	return []*cobra.Command{f.copy(), takesPlaces(f.cat()), f.diff(), fs}
}

// takesPlaces makes a command of BOX and paths accept BOX:/PATH too, as cp does.
func takesPlaces(cmd *cobra.Command) *cobra.Command {
	check, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, args []string) error { return check(cmd, apart(args)) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd, apart(args)) }
	return cmd
}

// apart splits BOX:/PATH... of one box into BOX and PATH.... An id may contain a colon, and may be a URL: those stay
// unchanged, and so does an id before paths without it.
func apart(args []string) []string {
	if len(args) == 0 {
		return args
	}
	i := strings.LastIndex(args[0], ":/")
	if i <= 0 || strings.HasPrefix(args[0][i:], "://") {
		return args
	}
	box := args[0][:i]
	list := []string{box}
	for _, arg := range args {
		path, ok := strings.CutPrefix(arg, box+":")
		if !ok {
			return args
		}
		list = append(list, path)
	}
	return list
}

type fileCommands struct{ *app }

// fileName formats a file name. One with control characters, or that is not UTF-8, is quoted.
func fileName(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }) {
		return strconv.Quote(text)
	}
	return text
}

func (f fileCommands) read() *cobra.Command {
	var req api.FileRead
	var base64Wanted bool
	cmd := &cobra.Command{
		Use:   "read BOX PATH",
		Short: "Print lines of a text file",
		Long: `read prints lines of a text file. If there are more, it prints the --offset that continues to
standard error.`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Path = args[1]
			if base64Wanted {
				req.Encoding = "base64"
			}
			got, err := c.ReadFile(cmd.Context(), args[0], &req)
			return f.answer(got, err, func() error {
				if _, err := io.WriteString(f.stdout, got.Content); err != nil {
					return err
				}
				if got.NextOffset > 0 {
					fmt.Fprintf(f.stderr, "boxctl: there is more: --offset %d\n", got.NextOffset)
				} else if got.Truncated {
					fmt.Fprintf(f.stderr, "boxctl: there is more, from byte %d on: boxctl cat shows all of it\n", got.NextByteOffset)
				}
				return nil
			})
		}),
	}
	cmd.Flags().IntVar(&req.Offset, "offset", 0, "`LINE` first line to print, counted from 1")
	cmd.Flags().IntVar(&req.Limit, "limit", 0, "`LINES` print at most this many lines (default 2000)")
	cmd.Flags().Int64Var(&req.MaxBytes, "max-bytes", 0, "`N` print at most this many bytes (default 51200)")
	cmd.Flags().BoolVar(&base64Wanted, "base64", false, "print base64; works for any file")
	return cmd
}

func (f fileCommands) write() *cobra.Command {
	var req api.FileWrite
	var appendTo, create, inPlace bool
	cmd := &cobra.Command{
		Use:   "write BOX PATH",
		Short: "Write standard input to a file",
		Long: `write replaces the content of a file with standard input, in one step: programs see the old file or
the new one. Missing directories are created. With --in-place it writes as the input comes, whatever
its size: permissions and hard links of the file stay, and programs may see part of it.`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			switch {
			case inPlace && (appendTo || create || req.IfMatch != ""):
				return &usageError{err: fmt.Errorf("--in-place excludes --append, --create and --if-match")}
			case inPlace:
				got, err := c.PutFile(cmd.Context(), args[0], client.PutFile{Path: args[1], Permissions: req.Permission}, f.stdin)
				if err != nil || !f.json {
					return err
				}
				return f.printJSON(got)
			case appendTo && create:
				return &usageError{err: fmt.Errorf("--append and --create exclude each other")}
			case appendTo:
				req.Mode = "append"
			case create:
				req.Mode = "create"
			}
			const limit = 16 << 20
			content, err := io.ReadAll(io.LimitReader(f.stdin, limit+1))
			if err != nil {
				return err
			}
			if len(content) > limit {
				return fmt.Errorf("more than 16MiB on standard input: use --in-place, which takes any size")
			}
			req.Path, req.Content, req.Encoding = args[1], base64.StdEncoding.EncodeToString(content), "base64"
			got, err := c.WriteFile(cmd.Context(), args[0], &req)
			if err != nil || !f.json {
				return err
			}
			return f.printJSON(got)
		}),
	}
	cmd.Flags().BoolVar(&appendTo, "append", false, "append to the file")
	cmd.Flags().BoolVar(&create, "create", false, "fail if the file exists")
	cmd.Flags().BoolVar(&inPlace, "in-place", false, "write into the existing file as the input comes, of any size")
	cmd.Flags().StringVar(&req.Permission, "permissions", "", "`MODE` permissions of the file, for example 0755")
	cmd.Flags().StringVar(&req.IfMatch, "if-match", "", "`DIGEST` write only if the file has this digest, see fs stat --digest")
	return cmd
}

func (f fileCommands) edit() *cobra.Command {
	var old, fresh string
	var all bool
	cmd := &cobra.Command{
		Use:   "edit BOX PATH",
		Short: "Replace text in a file",
		Long: `edit replaces a text that occurs exactly once in the file, or with --all every time it occurs.
Without --old it reads edits from standard input, as JSON:
[{"old": "…", "new": "…", "all": false}, …]. It makes all of them or none.`,
		Args: usage(cobra.ExactArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req := &api.FileEdit{Path: args[1], Edits: []api.FileReplacement{{Old: old, New: fresh, All: all}}}
			if !cmd.Flags().Changed("old") {
				req.Edits = nil
				if err := json.NewDecoder(f.stdin).Decode(&req.Edits); err != nil {
					return &usageError{err: fmt.Errorf("edits on standard input: %w", err)}
				}
			}
			got, err := c.EditFile(cmd.Context(), args[0], req)
			return f.answer(got, err, func() error {
				for _, e := range got.Edits {
					fmt.Fprintf(f.stdout, "line %d: %d replaced\n", e.Line, e.Count)
				}
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&old, "old", "", "`TEXT` text to replace")
	cmd.Flags().StringVar(&fresh, "new", "", "`TEXT` replacement")
	cmd.Flags().BoolVar(&all, "all", false, "replace every occurrence")
	return cmd
}

func (f fileCommands) glob() *cobra.Command {
	var req api.FileGlob
	cmd := &cobra.Command{
		Use:   "glob BOX PATTERN [PATH]",
		Short: "Find files by name, newest first",
		Long: `glob lists files whose names match a pattern: * matches any text within a name, ** any directories,
? one character, [a-z] one of these characters, {a,b} one of these words. Files that .gitignore
excludes are skipped, as are .git, node_modules, dist and similar directories.`,
		Args: usage(cobra.RangeArgs(2, 3)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Pattern = args[1]
			if len(args) == 3 {
				req.Path = args[2]
			}
			got, err := c.GlobFiles(cmd.Context(), args[0], &req)
			return f.answer(got, err, func() error {
				for i := range got.Entries {
					fmt.Fprintln(f.stdout, fileName(got.Entries[i].Path))
				}
				return f.more(got.Truncated)
			})
		}),
	}
	cmd.Flags().IntVar(&req.Limit, "limit", 0, "`N` print at most this many names (default 100)")
	cmd.Flags().BoolVar(&req.NoIgnore, "no-ignore", false, "include files that .gitignore and the built-in list leave out")
	return cmd
}

// more prints a note if the result is incomplete.
func (f fileCommands) more(is bool) error {
	if is {
		fmt.Fprintln(f.stderr, "boxctl: there is more: raise --limit, or narrow it down")
	}
	return nil
}

func (f fileCommands) grep() *cobra.Command {
	var req api.FileGrep
	cmd := &cobra.Command{
		Use:   "grep BOX PATTERN [PATH]",
		Short: "Find lines in files",
		Long: `grep prints lines that match a regular expression (RE2) in the text files below PATH. It skips the
same files as glob, and exits with 1 if nothing matches.`,
		Args: usage(cobra.RangeArgs(2, 3)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Pattern = args[1]
			if len(args) == 3 {
				req.Path = args[2]
			}
			got, err := c.GrepFiles(cmd.Context(), args[0], &req)
			return f.answer(got, err, func() error {
				for _, file := range got.Files {
					if len(file.Lines) == 0 {
						fmt.Fprintln(f.stdout, fileName(file.Path))
					}
					for _, l := range file.Lines {
						sign := ":"
						if l.Column == 0 {
							sign = "-"
						}
						fmt.Fprintf(f.stdout, "%s%s%d%s%s\n", fileName(file.Path), sign, l.Line, sign, strings.Map(printable, l.Text))
					}
				}
				if got.Matches == 0 {
					return exitError(1)
				}
				return f.more(got.Truncated)
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&req.IgnoreCase, "ignore-case", "i", false, "ignore upper and lower case")
	flags.BoolVarP(&req.Literal, "literal", "F", false, "take PATTERN as text, not as a regular expression")
	flags.BoolVarP(&req.NamesOnly, "names", "l", false, "print only the names of matching files")
	flags.IntVarP(&req.Before, "before", "B", 0, "`LINES` print this many lines before each match")
	flags.IntVarP(&req.After, "after", "A", 0, "`LINES` print this many lines after each match")
	flags.StringArrayVar(&req.Include, "include", nil, "`GLOB` search only files that match")
	flags.StringArrayVar(&req.Exclude, "exclude", nil, "`GLOB` skip files that match")
	flags.IntVar(&req.Limit, "limit", 0, "`N` print at most this many lines (default 200)")
	flags.BoolVar(&req.NoIgnore, "no-ignore", false, "include files that .gitignore and the built-in list leave out")
	return cmd
}

// printable replaces control characters.
func printable(r rune) rune {
	if unicode.IsControl(r) && r != '\t' {
		return utf8.RuneError
	}
	return r
}

func (f fileCommands) list() *cobra.Command {
	var req api.FileList
	var l *listing[api.File]
	cmd := &cobra.Command{
		Use: "list BOX [PATH]", Aliases: []string{"ls"},
		Short: "List a directory",
		Args:  usage(cobra.RangeArgs(1, 2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 2 {
				req.Path = args[1]
			}
			got, err := c.ListFiles(cmd.Context(), args[0], &req)
			return l.print(got.Entries, got, err, func() error {
				if err := f.table(got.Entries); err != nil {
					return err
				}
				return f.more(got.Truncated)
			})
		}),
	}
	l = newListing(f.app, cmd, "paths", func(e *api.File) string { return e.Path })
	cmd.Flags().IntVar(&req.Depth, "depth", 0, "`LEVELS` levels of directories to list (default 1)")
	cmd.Flags().IntVar(&req.Limit, "limit", 0, "`N` print at most this many entries (default 1000)")
	return cmd
}

func (f fileCommands) table(entries []api.File) error {
	w := tabwriter.NewWriter(f.stdout, 0, 0, 2, ' ', 0)
	for i := range entries {
		e := &entries[i]
		target := ""
		if e.Type == "symlink" {
			target = " -> " + fileName(e.Target)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s%s\n", e.Type, e.Mode, e.Size, e.ModifiedAt.Local().Format(time.DateTime), fileName(e.Path), target)
	}
	return w.Flush()
}

func (f fileCommands) stat() *cobra.Command {
	var req api.FileStat
	cmd := &cobra.Command{
		Use:   "stat BOX PATH",
		Short: "Describe a file or directory",
		Args:  usage(cobra.ExactArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.Path = args[1]
			got, err := c.StatFile(cmd.Context(), args[0], &req)
			return f.answer(got, err, func() error {
				if err := f.table([]api.File{got}); err != nil {
					return err
				}
				return f.details(&got)
			})
		}),
	}
	cmd.Flags().BoolVar(&req.NoFollow, "no-follow", false, "describe a symbolic link, not its target")
	cmd.Flags().BoolVar(&req.Digest, "digest", false, "print the SHA-256 digest of the file")
	cmd.Flags().BoolVar(&req.Xattrs, "xattrs", false, "print the extended attributes of the file")
	return cmd
}

// details prints attributes of a file that are not in the table.
func (f fileCommands) details(e *api.File) error {
	if e.UID != nil && e.GID != nil {
		fmt.Fprintf(f.stdout, "owner %s, group %s\n", named(e.User, *e.UID), named(e.Group, *e.GID))
	}
	if e.Resolved != "" {
		fmt.Fprintf(f.stdout, "leads to %s, a %s with mode %s\n", fileName(e.Resolved), e.TargetType, e.TargetMode)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Xattrs)) {
		fmt.Fprintf(f.stdout, "%s=%q\n", fileName(name), e.Xattrs[name])
	}
	if e.Digest != "" {
		fmt.Fprintln(f.stdout, e.Digest)
	}
	return nil
}

// named formats a user or group of a box.
func named(name string, id uint32) string {
	if name == "" {
		return strconv.FormatUint(uint64(id), 10)
	}
	return fmt.Sprintf("%s (%d)", fileName(name), id)
}

func (f fileCommands) move() *cobra.Command {
	var req api.FileMove
	cmd := &cobra.Command{
		Use: "move BOX FROM TO", Aliases: []string{"mv"},
		Short: "Rename a file or directory",
		Args:  usage(cobra.ExactArgs(3)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			req.From, req.To = args[1], args[2]
			return c.MoveFile(cmd.Context(), args[0], &req)
		}),
	}
	cmd.Flags().BoolVar(&req.Overwrite, "overwrite", false, "replace an existing file")
	return cmd
}

func (f fileCommands) mkdir() *cobra.Command {
	req := api.FileMkdir{ExistOK: true}
	cmd := &cobra.Command{
		Use:   "mkdir BOX PATH...",
		Short: "Create directories",
		Long:  "mkdir creates directories and their missing parents. Existing directories stay as they are.",
		Args:  usage(cobra.MinimumNArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return forEach(args[1:], func(path string) error {
				req.Path = path
				_, err := c.MakeDirectory(cmd.Context(), args[0], &req)
				return err
			})
		}),
	}
	cmd.Flags().StringVarP(&req.Mode, "mode", "m", "", "`MODE` permissions of the directories, for example 0700 (default 0755)")
	cmd.Flags().BoolP("parents", "p", false, "no effect: parents are always created")
	return cmd
}

func (f fileCommands) watch() *cobra.Command {
	var o client.WatchFiles
	cmd := &cobra.Command{
		Use:   "watch BOX [PATH]",
		Short: "Print what happens in a directory",
		Long: `watch prints a line for each file that is created, written to, removed, renamed, or has its
permissions changed in a directory, until you press Ctrl-C or the directory is removed. The first
line, watching, says that it has begun.`,
		Args: usage(cobra.RangeArgs(1, 2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if len(args) == 2 {
				o.Path = args[1]
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			lines := json.NewEncoder(f.stdout)
			lines.SetEscapeHTML(false)
			err := c.WatchFiles(ctx, args[0], o, func(e *api.FileEvent) error {
				if f.json {
					return lines.Encode(e)
				}
				text := strings.TrimRight(fmt.Sprintf("%-8s  %-9s  %s", e.Event, e.Type, fileName(e.Path)), " ")
				if e.From != "" {
					text += " <- " + fileName(e.From)
				}
				_, err := fmt.Fprintln(f.stdout, text)
				return err
			})
			if errors.Is(err, context.Canceled) {
				return nil // the user has stopped watching
			}
			return err
		}),
	}
	cmd.Flags().BoolVarP(&o.Recursive, "recursive", "r", false, "watch the directories below too")
	return cmd
}

func (f fileCommands) chmod() *cobra.Command {
	return &cobra.Command{
		Use:   "chmod BOX MODE PATH",
		Short: "Change the permissions of a file or directory",
		Long: `chmod sets the permission bits of a file or directory. MODE is octal, for example 755. It also works
if a program has removed its own permissions for the workspace.`,
		Args: usage(cobra.ExactArgs(3)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return c.ChmodFile(cmd.Context(), args[0], &api.FileChmod{Mode: args[1], Path: args[2]})
		}),
	}
}

func (f fileCommands) remove() *cobra.Command {
	var req api.FileRemove
	cmd := &cobra.Command{
		Use: "remove BOX PATH...", Aliases: []string{"rm"},
		Short: "Remove files or directories",
		Args:  usage(cobra.MinimumNArgs(2)),
		RunE: f.call(func(cmd *cobra.Command, c *client.Client, args []string) error {
			return forEach(args[1:], func(path string) error {
				req.Path = path
				return c.RemoveFile(cmd.Context(), args[0], &req)
			})
		}),
	}
	cmd.Flags().BoolVarP(&req.Recursive, "recursive", "r", false, "remove a directory and its contents")
	cmd.Flags().BoolVarP(&req.MissingOK, "missing-ok", "f", false, "succeed if the file does not exist")
	return cmd
}
