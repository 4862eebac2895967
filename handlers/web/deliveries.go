package web

import (
	"context"
	"errors"
	"net/http"

	"github.com/gorilla/mux"

	"github.com/claude-hub/claude-hub/app/access"
	"github.com/claude-hub/claude-hub/app/fault"
	"github.com/claude-hub/claude-hub/handlers/request"
	"github.com/claude-hub/claude-hub/handlers/webhook"
)

// Deliveries are GitHub's webhooks that could not be worked off.
type Deliveries interface {
	Asides(ctx context.Context) ([]webhook.Aside, error)
	Again(ctx context.Context, who, id string) error
}

type deliveriesPage struct {
	Page
	Asides []webhook.Aside
}

func (w *Web) deliveries(rw http.ResponseWriter, r *http.Request, _ access.Person) error {
	return w.showDeliveries(rw, r, http.StatusOK, "")
}

func (w *Web) showDeliveries(rw http.ResponseWriter, r *http.Request, status int, alert string) error {
	p := deliveriesPage{Page: w.page(r, "Webhooks set aside")}
	p.Section, p.Alert = "deliveries", alert
	var err error
	if p.Asides, err = w.d.Deliveries.Asides(r.Context()); err != nil {
		return err
	}
	return w.render(rw, r, status, "deliveries", p)
}

func (w *Web) tryDeliveryAgain(rw http.ResponseWriter, r *http.Request, who access.Person) error {
	err := w.d.Deliveries.Again(r.Context(), who.ID(), mux.Vars(r)["delivery"])
	var f *fault.Error
	if errors.As(err, &f) {
		return w.showDeliveries(rw, r, request.Status(f.Code), f.Message)
	}
	if err != nil {
		return err
	}
	return seeOther(rw, r, "/deliveries")
}
