// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/cmd/boxctl/transfer"
)

// sendPause is the maximum pause between attempts at one request: boxd retries later.
const sendPause = time.Second

// send is run by boxd-push.socket for each archive that boxd has for a bucket.
func (s driveCommands) send() *cobra.Command {
	return &cobra.Command{
		Use: "send", Short: "Push an archive from boxd to a bucket", Hidden: true, Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, err := sendArchive(cmd.Context(), s.stdin)
			if err != nil {
				_, err = fmt.Fprintf(s.stdout, "error %s\n", strings.Join(strings.Fields(err.Error()), " "))
				return err
			}
			_, err = fmt.Fprintf(s.stdout, "ok %d files sent, %d present\n", done.Sent, done.There)
			return err
		},
	}
}

// sendArchive reads a head, with the target and its credentials, and an archive; see supervisor/driver.SendTo.
func sendArchive(ctx context.Context, in io.Reader) (done transfer.Pushed, err error) {
	spool, err := newSpool()
	if err != nil {
		return done, err
	}
	defer spool.Close()
	r := bufio.NewReader(in)
	head, err := textproto.NewReader(bufio.NewReader(headOf{r})).ReadMIMEHeader()
	if err != nil {
		return done, fmt.Errorf("head: %w", err)
	}
	key, err := base64.StdEncoding.DecodeString(head.Get("Credentials"))
	if err != nil {
		return done, errors.New("head: no credentials")
	}
	b, err := transfer.OpenBucket(&transfer.BucketOptions{
		Address: head.Get("Address"), Endpoint: head.Get("Endpoint"), Region: head.Get("Region"), Insecure: head.Get("Insecure") == "true",
		Key: key, Getenv: func(string) string { return "" }, Pause: sendPause,
	})
	if err != nil {
		return done, err
	}
	defer b.Close()
	if _, err := io.Copy(spool, r); err != nil {
		return done, err
	}
	files, err := archivedFiles(spool)
	if err != nil {
		return done, err
	}
	return b.Push(ctx, files, true, func(int64) {})
}

// headOf reads up to the empty line that ends a head, byte by byte: what follows belongs to the archive.
type headOf struct{ r *bufio.Reader }

// Read reads at most one line.
func (h headOf) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c, err := h.r.ReadByte()
	if err != nil {
		return 0, err
	}
	p[0] = c
	return 1, nil
}

// archivedFiles returns the files of an archive with their positions.
func archivedFiles(spool *os.File) (files []transfer.File, err error) {
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	above := map[string]bool{}
	var empty []string
	for in := tar.NewReader(spool); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("archive: %w", err)
		}
		path := strings.TrimSuffix(h.Name, "/")
		if slash := strings.LastIndexByte(path, '/'); slash >= 0 {
			above[path[:slash]] = true
		}
		if h.Typeflag == tar.TypeDir {
			empty = append(empty, path)
			continue
		}
		file, err := spooledFile(spool, in, h.Size)
		if err != nil {
			return nil, err
		}
		file.Path, file.Program = path, h.Mode&0o111 != 0
		files = append(files, file)
	}
	for _, path := range empty {
		if !above[path] {
			files = append(files, emptyDirectory(path))
		}
	}
	return files, nil
}
