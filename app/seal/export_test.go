package seal

// EachRow makes f run after each row that Rotate has sealed anew, inside its transaction.
func (s *Service) EachRow(f func()) { s.row = f }

const (
	Batch = batch
	Live  = live
)
