// Light or dark, before the first stroke is drawn: what was chosen here, else as the system has it.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
