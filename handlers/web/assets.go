package web

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"

	"github.com/gorilla/mux"
)

// asset is one file with a name that changes with its content, so that browsers may keep it for ever.
type asset struct {
	kind string
	data []byte
	hash string
}

func loadAssets() (map[string]asset, error) {
	entries, err := fs.ReadDir(files, "assets")
	if err != nil {
		return nil, err
	}
	all := map[string]asset{}
	for _, e := range entries {
		data, err := fs.ReadFile(files, "assets/"+e.Name())
		if err != nil {
			return nil, fmt.Errorf("read asset %s: %w", e.Name(), err)
		}
		kind := mime.TypeByExtension(path.Ext(e.Name()))
		switch path.Ext(e.Name()) { // not what this host's mime.types says
		case ".css":
			kind = "text/css; charset=utf-8"
		case ".js":
			kind = "text/javascript; charset=utf-8"
		case ".svg":
			kind = "image/svg+xml"
		}
		sum := sha256.Sum256(data)
		all[e.Name()] = asset{kind, data, hex.EncodeToString(sum[:6])}
	}
	return all, nil
}

func (w *Web) assetPath(name string) (string, error) {
	a, ok := w.assets[name]
	if !ok {
		return "", fmt.Errorf("there is no asset %s", name)
	}
	return "/assets/" + name + "?v=" + a.hash, nil
}

func (w *Web) asset(rw http.ResponseWriter, r *http.Request) {
	a, ok := w.assets[mux.Vars(r)["file"]]
	if !ok {
		w.noPage(rw, r)
		return
	}
	rw.Header().Set("Content-Type", a.kind)
	rw.Header().Set("ETag", `"`+a.hash+`"`)
	rw.Header().Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == a.hash {
		rw.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	if r.Header.Get("If-None-Match") == `"`+a.hash+`"` {
		rw.WriteHeader(http.StatusNotModified)
		return
	}
	if r.Method != http.MethodHead {
		_, _ = rw.Write(a.data)
	}
}
