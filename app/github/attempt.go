package github

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Attempt is one entry of GitHub's log of deliveries. All attempts at one event share its GUID, which is a Delivery's ID.
type Attempt struct {
	ID                       int64
	GUID                     string
	Event, Action            string
	At                       time.Time
	Redelivery               bool
	Status                   int // what the Hub answered; 0 when it wasn't reached
	Installation, Repository int64
}

// Delivered says whether the Hub took it.
func (t Attempt) Delivered() bool { return t.Status >= 200 && t.Status < 300 }

// Attempts is GitHub's log of deliveries since then, newest first. GitHub keeps three days.
func (a *App) Attempts(ctx context.Context, since time.Time) ([]Attempt, error) {
	var all []Attempt
	path := "app/hook/deliveries?per_page=100"
	for range pages * 10 {
		var page []struct {
			ID           int64     `json:"id"`
			GUID         string    `json:"guid"`
			DeliveredAt  time.Time `json:"delivered_at"`
			Redelivery   bool      `json:"redelivery"`
			StatusCode   int       `json:"status_code"`
			Event        string    `json:"event"`
			Action       *string   `json:"action"`
			Installation *int64    `json:"installation_id"`
			Repository   *int64    `json:"repository_id"`
		}
		resp, err := a.asApp(ctx, http.MethodGet, path, nil, &page)
		if err != nil {
			return nil, err
		}
		for _, j := range page {
			if j.DeliveredAt.Before(since) {
				return all, nil
			}
			t := Attempt{ID: j.ID, GUID: j.GUID, Event: j.Event, At: j.DeliveredAt, Redelivery: j.Redelivery, Status: j.StatusCode}
			if j.Action != nil {
				t.Action = *j.Action
			}
			if j.Installation != nil {
				t.Installation = *j.Installation
			}
			if j.Repository != nil {
				t.Repository = *j.Repository
			}
			all = append(all, t)
		}
		if resp.Cursor == "" {
			return all, nil
		}
		path = "app/hook/deliveries?per_page=100&cursor=" + url.QueryEscape(resp.Cursor)
	}
	return all, nil
}

// Missed are the newest attempts at each event that the Hub took none of, oldest first: what to ask for again.
func Missed(log []Attempt) []Attempt {
	newest, taken := map[string]Attempt{}, map[string]bool{}
	for _, t := range log {
		taken[t.GUID] = taken[t.GUID] || t.Delivered()
		if n, ok := newest[t.GUID]; !ok || t.ID > n.ID {
			newest[t.GUID] = t
		}
	}
	var out []Attempt
	for guid, t := range newest {
		if !taken[guid] {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Attempt) int { return int(a.ID - b.ID) })
	return out
}

// Redeliver asks GitHub to send it again, under the same GUID.
func (a *App) Redeliver(ctx context.Context, attempt int64) error {
	_, err := a.asApp(ctx, http.MethodPost, fmt.Sprintf("app/hook/deliveries/%d/attempts", attempt), nil, nil)
	return err
}

// HookURL is where the App's webhooks go.
func (a *App) HookURL(ctx context.Context) (string, error) {
	var j struct {
		URL string `json:"url"`
	}
	_, err := a.asApp(ctx, http.MethodGet, "app/hook/config", nil, &j)
	return j.URL, err
}

// SetHook sets where the App's webhooks go, and the secret they are signed with.
func (a *App) SetHook(ctx context.Context, to string, secret Secret) error {
	if to == "" || secret.Empty() {
		return fail(Invalid, "A webhook needs an address and a secret.")
	}
	in := map[string]string{"url": to, "content_type": "json", "insecure_ssl": "0", "secret": secret.Reveal()}
	_, err := a.asApp(ctx, http.MethodPatch, "app/hook/config", in, nil)
	return err
}
