// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
	"github.com/boxd-dev/boxd/skills"
)

// An uploaded skill stays for another try if the store has no place for it.
func TestAnUploadedSkillStaysWhenTheStoreIsBusy(t *testing.T) {
	t.Parallel()
	store, err := skills.Open(t.TempDir(), skills.DefaultConfig(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	r := &SkillRequest{Data: map[string]json.RawMessage{"file_key": json.RawMessage(`"0123.zip"`)}, Principal: "langbot", Namespace: "ws-1", Files: wire.NewUploads(wire.NewUploadBudget())}
	defer r.Files.Close()
	piece := map[string]json.RawMessage{"file_key": json.RawMessage(`"0123.zip"`), "chunk_base64": json.RawMessage(`"UEs="`), "chunk_index": json.RawMessage("0"), "chunk_amount": json.RawMessage("1")}
	if err := r.Files.Put(piece, 1<<20); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for { // until it has its share
		st, err := store.Stage(ctx, r.owner())
		if err != nil {
			break
		}
		defer st.Close()
	}
	_, err = (&Skills{Store: store}).archive(ctx, r, func(*skills.Stage, *skills.Choice) (any, error) { return nil, nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want err is context.DeadlineExceeded", err)
	}
	f, ok := r.Files.Take("0123.zip")
	if !ok {
		t.Fatal("the upload was removed")
	}
	f.Close()
}
