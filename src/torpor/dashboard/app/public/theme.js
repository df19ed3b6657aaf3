// Set the theme that the user chose before the page is drawn; without a choice the system decides.
{
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
