// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/transfer"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

func (s driveCommands) push() *cobra.Command {
	o := transfer.BucketOptions{Getenv: os.Getenv}
	var overwrite bool
	cmd := &cobra.Command{
		Use: "push [flags] NAME[@VERSION] s3://BUCKET/PREFIX", Short: "Push a version of a drive to an S3 bucket", Args: usage(cobra.ExactArgs(2)),
		Long: `push uploads each file of a version as an object below PREFIX/ of an S3-compatible bucket, and then
marks the version as pushed (see keep --push). Objects that already have the right content are
skipped, so the same command continues after a failure. Objects with different content are replaced
only with --overwrite, and none are removed. boxctl itself connects to the bucket, not boxd.

Credentials come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, from a file
given with --credentials (aws_access_key_id = …, aws_secret_access_key = …; mode 0600), or from the
systemd credential boxctl-s3.`,
		Example: `  boxctl drives push me/results s3://results/run-7
  boxctl drives push --endpoint https://s3.example --credentials ~/.s3 me/results@3 s3://results`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, version, err := parseDriveVersion(args[0])
			if err != nil {
				return err
			}
			o.Address = args[1]
			b, err := transfer.OpenBucket(&o)
			if err != nil {
				return &usageError{err: err}
			}
			defer b.Close()
			return s.pushTo(cmd.Context(), b, name, version, overwrite)
		},
	}
	o.Flags(cmd.Flags())
	o.SendFlags(cmd.Flags())
	s.addQuiet(cmd, "show no progress")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "replace objects with different content")
	return cmd
}

// pushed is the result of a push, as JSON.
type pushed struct {
	Drive   string `json:"drive"`
	Version int    `json:"version"`
	Digest  string `json:"digest"`
	To      string `json:"to"`
	transfer.Pushed
}

// pushTo copies a version to a bucket, and tells boxd.
func (s driveCommands) pushTo(ctx context.Context, b *transfer.Bucket, name string, version int, overwrite bool) error {
	c := s.client()
	defer c.Close()
	all, err := driveIndex(ctx, c, name, version, "")
	if err != nil {
		return err
	}
	v := &all.Version
	spool, err := newSpool()
	if err != nil {
		return err
	}
	defer spool.Close()
	files, err := versionFiles(ctx, c, name, &all, spool)
	if err != nil {
		return err
	}
	p := s.progress("pushed", v.Bytes)
	done, err := b.Push(ctx, files, overwrite, p.add)
	p.end()
	if err == nil {
		_, err = c.MarkDrivePushed(ctx, name, v.Version)
	}
	if err != nil {
		return fmt.Errorf("%s@%d is not pushed, and still in boxd; the same command sends only what is missing: %w", name, v.Version, err)
	}
	if s.json {
		return s.printJSON(pushed{name, v.Version, v.Digest, b.String(), done})
	}
	_, err = fmt.Fprintf(s.stdout, "%s@%d %v: %d files sent, %d present\n", name, v.Version, b, done.Sent, done.There)
	return err
}

// newSpool makes a temporary file without a name, which needs no removal: a bucket may be slower than boxd's timeouts,
// and a part may have to be sent again.
func newSpool() (*os.File, error) {
	f, err := os.CreateTemp("", "boxctl-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// versionFiles fetches a version into the spool, and returns its files with their positions. Each file is checked against the index.
func versionFiles(ctx context.Context, c *client.Client, name string, all *api.DriveIndex, spool *os.File) ([]transfer.File, error) {
	r, err := c.DriveArchive(ctx, name, all.Version.Version)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if _, err := io.Copy(spool, r); err != nil {
		return nil, fmt.Errorf("drive %s: %w", name, err)
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	listed, above := map[string]*api.DriveEntry{}, map[string]bool{}
	for i := range all.Entries {
		e := &all.Entries[i]
		listed[e.Path] = e
		if slash := strings.LastIndexByte(e.Path, '/'); slash >= 0 {
			above[e.Path[:slash]] = true
		}
	}
	var files []transfer.File
	for in := tar.NewReader(spool); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("drive %s: %w", name, err)
		}
		path := strings.TrimSuffix(h.Name, "/")
		e := listed[path]
		delete(listed, path)
		switch {
		case e == nil || e.Size != h.Size:
			return nil, fmt.Errorf("drive %s: boxd sent %.200q, not as in its index", name, h.Name)
		case e.Type != "directory":
			file, err := spooledFile(spool, in, h.Size)
			if err != nil {
				return nil, err
			}
			if file.SHA256 != strings.TrimPrefix(e.SHA256, "sha256:") {
				return nil, fmt.Errorf("drive %s: %.200q has a digest other than that in the index", name, h.Name)
			}
			file.Path, file.Program = path, e.Executable
			files = append(files, file)
		case !above[path]:
			files = append(files, emptyDirectory(path))
		}
	}
	if len(listed) > 0 {
		return nil, fmt.Errorf("drive %s: boxd sent %d entries fewer than its index has", name, len(listed))
	}
	return files, nil
}

// spooledFile is the file of an archive in the spool that in is at.
func spooledFile(spool *os.File, in io.Reader, size int64) (transfer.File, error) {
	from, err := spool.Seek(0, io.SeekCurrent) // a tar.Reader does not read ahead
	if err != nil {
		return transfer.File{}, err
	}
	sum := sha256.New()
	_, err = io.Copy(sum, in)
	return transfer.File{Size: size, SHA256: hex.EncodeToString(sum.Sum(nil)), Content: io.NewSectionReader(spool, from, size)}, err
}

// emptyDirectory is the object for an empty directory: a bucket has none without it.
func emptyDirectory(path string) transfer.File {
	return transfer.File{Path: path + "/", SHA256: hex.EncodeToString(sha256.New().Sum(nil)), Content: strings.NewReader("")}
}

// fromBucket fetches everything below a prefix before boxd gets any of it. done releases it.
func (s driveCommands) fromBucket(ctx context.Context, o *transfer.BucketOptions, limit quantity.Size) (r io.Reader, done func(), err error) {
	b, err := transfer.OpenBucket(o)
	if err != nil {
		return nil, nil, &usageError{err: err}
	}
	defer b.Close()
	list, total, err := b.List(ctx, int64(limit))
	if err != nil {
		return nil, nil, err
	}
	spool, err := newSpool()
	if err != nil {
		return nil, nil, err
	}
	p := s.progress("fetched", total)
	defer p.end()
	if err = b.Fetch(ctx, list, spool, p.add); err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		spool.Close()
		return nil, nil, err
	}
	return struct{ io.Reader }{spool}, func() { spool.Close() }, nil // the sender must not close it
}
