// SPDX-License-Identifier: Apache-2.0

// This file is the part of the Go client about images.

package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Images asks a boxd about images.
type Images struct{ *Client }

func path(name string) string {
	return "/v1/images/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}

// List lists all images, by name.
func (c Images) List(ctx context.Context) ([]api.Image, error) {
	var list api.ImageList
	_, err := c.Ask(ctx, http.MethodGet, "/v1/images", nil, &list)
	return list.Images, err
}

// Get describes an image, by its name or digest.
func (c Images) Get(ctx context.Context, name string) (img api.Image, err error) {
	if name == "" {
		return img, ErrNoID
	}
	_, err = c.Ask(ctx, http.MethodGet, path(name), nil, &img)
	return img, err
}

// Import makes an image of an archive. name is what it is called, "" what the archive says; form says what the archive
// is, "" what it looks like.
func (c Images) Import(ctx context.Context, archive io.Reader, name, form string) (img api.Image, err error) {
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	if form != "" {
		query.Set("form", form)
	}
	at := "/v1/images"
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	_, err = c.Ask(ctx, http.MethodPost, at, archive, &img)
	return img, err
}

// Diff says what the programs of a session have changed of its image.
func (c Images) Diff(ctx context.Context, session string, req *api.RootDiff) (diff api.Changes, err error) {
	_, err = c.About(ctx, http.MethodPost, session, "/fs/diff", req, &diff)
	return diff, err
}

// Discard undoes what the programs of a session have changed of its image.
func (c Images) Discard(ctx context.Context, session string, req *api.RootDiscard) (done api.RootDiscarded, err error) {
	_, err = c.About(ctx, http.MethodPost, session, "/fs/discard", req, &done)
	return done, err
}

// Commit makes an image of what programs of a session have made of its own.
func (c Images) Commit(ctx context.Context, session string, req *api.ImageCommit) (img api.Image, err error) {
	_, err = c.About(ctx, http.MethodPost, session, "/commit", req, &img)
	return img, err
}

// Delete removes an image. Sessions that have it keep it.
func (c Images) Delete(ctx context.Context, name string) error {
	if name == "" {
		return ErrNoID
	}
	_, err := c.Ask(ctx, http.MethodDelete, path(name), nil, nil)
	return err
}

// Prune removes the images that no session has and no profile names, and returns them.
func (c Images) Prune(ctx context.Context) ([]api.Image, error) {
	var list api.ImageList
	_, err := c.Ask(ctx, http.MethodPost, "/v1/images/prune", nil, &list)
	return list.Images, err
}
