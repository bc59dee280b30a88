// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Writes, changes, finds and watches files, and copies a directory out.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

var errSeen = errors.New("it was created")

// names are the paths of entries.
func names(entries api.FileEntries) string {
	var list []string
	for _, e := range entries.Entries {
		list = append(list, e.Path)
	}
	return strings.Join(list, " ")
}

func run(ctx context.Context, boxd *client.Client) error {
	session, _, err := boxd.CreateSession(ctx, &api.SessionRequest{})
	if err != nil {
		return err
	}
	id := session.ID
	defer boxd.DeleteSession(ctx, id)
	if _, err := boxd.WriteFile(ctx, id, &api.FileWrite{Path: "src/main.py", Content: "print('one')\n"}); err != nil {
		return err
	}
	if _, err := boxd.EditFile(ctx, id, &api.FileEdit{Path: "src/main.py", Edits: []api.FileReplacement{{Old: "one", New: "two"}}}); err != nil {
		return err
	}
	file, err := boxd.OpenFile(ctx, id, "src/main.py", 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := io.Copy(os.Stdout, file); err != nil {
		return err
	}
	list, err := boxd.ListFiles(ctx, id, &api.FileList{Path: "src"})
	if err != nil {
		return err
	}
	fmt.Println(names(list))

	err = boxd.WatchFiles(ctx, id, client.WatchFiles{Path: "src"}, func(e *api.FileEvent) error {
		switch {
		case e.Event == "watching":
			_, err := boxd.WriteFile(ctx, id, &api.FileWrite{Path: "src/other.py"})
			return err
		case e.Event == "create" && e.Path == "other.py":
			fmt.Println("created", e.Path)
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		return err
	}

	archive, err := boxd.DownloadArchive(ctx, id, "/workspace/src", false)
	if err != nil {
		return err
	}
	defer archive.Close()
	if _, err := boxd.UploadArchive(ctx, id, client.Upload{Path: "/workspace/copy"}, archive); err != nil {
		return err
	}
	found, err := boxd.GlobFiles(ctx, id, &api.FileGlob{Pattern: "copy/*.py", Sort: "name"})
	if err != nil {
		return err
	}
	fmt.Println(names(found))

	_, err = boxd.OpenFile(ctx, id, "src/nothing", 0)
	if refused, ok := errors.AsType[*client.Error](err); ok && errors.Is(err, client.NotFound) {
		fmt.Println(strings.TrimPrefix(refused.Type, api.ProblemType), refused.File.Kind)
		return nil
	}
	return err
}

func main() {
	boxd := client.New(os.Getenv("BOXD_SOCKET"))
	defer boxd.Close()
	if err := run(context.Background(), boxd); err != nil {
		log.Fatal(err)
	}
}
